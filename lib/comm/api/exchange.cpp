#include "comm/api/exchange.h"

#include <exception>
#include <vector>

#include "base/util/error.h"
#include "base/util/hash.h"

namespace fsdp::comm {

int transfer_tag(uint64_t seed, const at::Tensor& tensor) {
  uint64_t tag = util::mix64(seed);
  if (tensor.defined()) {
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.scalar_type()));
    tag = util::mix64(tag ^ static_cast<uint64_t>(tensor.numel()));
  }
  return static_cast<int>(tag & 0x7fffffff);
}

void Exchange::swap_with_all(int rank, int size, int tag, const std::function<at::Tensor(int)>& from,
                             const std::function<at::Tensor(int)>& to) {
  swap_pieces(rank, size, tag,
              {.count = 1,
               .from = [&from](int other, int64_t) { return from(other); },
               .to = [&to](int other, int64_t) { return to(other); },
               .meanwhile = [] {},
               .arrived = [](int64_t) {}});
}

void Exchange::swap_pieces(int rank, int size, int tag, const Pieces& pieces) {
  std::vector<std::vector<Transfer>> received(static_cast<size_t>(pieces.count));
  std::vector<Transfer> sent;
  std::exception_ptr lost;
  // If a peer is lost, all ranks fail. The others still get their tensors, and notice the loss themselves.
  const auto attempt = [&lost](const auto& body) {
    try {
      body();
    } catch (const util::Error& error) {
      if (error.kind() != ErrorKind::kPeerLost) throw;
      if (!lost) lost = std::current_exception();
    }
  };
  for (int64_t piece = 0; piece < pieces.count; ++piece) {
    for (int i = 1; i < size; ++i) {
      const int other = (rank - i + size) % size;
      const at::Tensor theirs = pieces.from(other, piece);
      if (theirs.numel() == 0) continue;
      attempt([&] { received[static_cast<size_t>(piece)].push_back(receive(other, tag, theirs)); });
    }
  }
  for (int64_t piece = 0; piece < pieces.count; ++piece) {
    for (int i = 1; i < size; ++i) {
      const int other = (rank + i) % size;
      const at::Tensor ours = pieces.to(other, piece);
      if (ours.numel() > 0) attempt([&] { sent.push_back(send(other, tag, ours)); });
    }
  }
  if (!lost) pieces.meanwhile();
  for (int64_t piece = 0; piece < pieces.count; ++piece) {
    for (const Transfer& transfer : received[static_cast<size_t>(piece)]) attempt([&] { wait(transfer); });
    if (!lost) pieces.arrived(piece);
  }
  for (const Transfer& transfer : sent) attempt([&] { wait(transfer); });
  if (lost) std::rethrow_exception(lost);
}

}  // namespace fsdp::comm
