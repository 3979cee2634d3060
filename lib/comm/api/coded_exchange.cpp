#include "comm/api/coded_exchange.h"

#include <vector>

#include "comm/api/memory_operations.h"

namespace fsdp::comm {

CodeRounding CodedPieces::of_rounding(CodeRounding part, int64_t piece) const {
  if (part.error.defined()) part.error = of_values(part.error, piece);
  part.first_block = piece * (kCodedPiece / kCodeBlock);
  return part;
}

void CodedExchange::all_gather(const Gather& gather) {
  const CodedPieces pieces(gather.coding->type, gather.input.numel());
  const CodeRounding rounding = gather.coding->of_result(gather.input.device());
  int64_t encoded = 0;  // pieces
  exchange_.swap_pieces(rank_, size_, gather.tag,
                        {.count = pieces.count(),
                         .from = gather.place,
                         .to =
                             [&](int, int64_t piece) {
                               const at::Tensor own = gather.place(rank_, piece);
                               if (piece == encoded) {
                                 encode(gather.coding->type, pieces.of_values(gather.input, piece), own,
                                        pieces.of_rounding(rounding, piece));
                                 ++encoded;
                               }
                               return own;
                             },
                         .meanwhile =
                             [&] {
                               for (int64_t piece = 0; piece < pieces.count(); ++piece)
                                 gather.take(rank_, piece);
                             },
                         .arrived =
                             [&](int64_t piece) {
                               for (int i = 1; i < size_; ++i)
                                 gather.take((rank_ - i + size_) % size_, piece);
                             }});
}

void CodedExchange::reduce_scatter(const Reduction& reduction) {
  const Coding& coding = *reduction.coding;
  const int64_t numel = reduction.output.numel(), bytes = coding.bytes(numel);
  const CodedPieces pieces(coding.type, numel);
  const at::Tensor codes = scratch(codes_, 2 * size_ * bytes, at::kByte);
  const auto code = [&](int member, bool is_received, int64_t piece) {
    return pieces.of_bytes(codes.narrow(0, (2 * member + int64_t{is_received}) * bytes, bytes), piece);
  };
  std::vector<at::Tensor> parts(static_cast<size_t>(size_));
  std::vector<CodeRounding> roundings(static_cast<size_t>(size_));
  exchange_.swap_pieces(rank_, size_, reduction.tag,
                        {.count = pieces.count(),
                         .from = [&](int other, int64_t piece) { return code(other, true, piece); },
                         .to =
                             [&](int other, int64_t piece) {
                               at::Tensor& part = parts[static_cast<size_t>(other)];
                               CodeRounding& rounding = roundings[static_cast<size_t>(other)];
                               if (piece == 0) {
                                 part = reduction.part(other);
                                 rounding = coding.of_sum(other, numel, part.device());
                               }
                               const at::Tensor sent = code(other, false, piece);
                               encode(coding.type, pieces.of_values(part, piece), sent,
                                      pieces.of_rounding(rounding, piece));
                               return sent;
                             },
                         .meanwhile = [&] { parts[static_cast<size_t>(rank_)] = reduction.part(rank_); },
                         .arrived =
                             [&](int64_t piece) {
                               CodedSum sum(pieces.of_values(reduction.output, piece), reduction.coding);
                               for (int from = 0; from < size_; ++from) {
                                 if (from == rank_) {
                                   sum.add(pieces.of_values(parts[static_cast<size_t>(from)], piece));
                                 } else {
                                   sum.add_coded(code(from, true, piece));
                                 }
                               }
                               sum.finish(reduction.finish);
                             }});
}

}  // namespace fsdp::comm
