#include "comm/rank_order_sum.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "util/error.h"

namespace fsdp::comm {

bool sums_in_float(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

void sum_in_rank_order(const at::Tensor& out, const std::vector<at::Tensor>& parts) {
  FSDP_CHECK(!parts.empty());
  if (parts.size() == 1) {
    out.copy_(parts[0]);
    return;
  }
  // In pieces that stay in the cache while all parts are added to them.
  constexpr int64_t kPiece = 1 << 16;
  bool in_float = sums_in_float(out.scalar_type());
  at::Tensor wide;
  if (in_float) wide = at::empty({std::min(kPiece, out.numel())}, at::kFloat);
  for (int64_t begin = 0; begin < out.numel(); begin += kPiece) {
    int64_t length = std::min(kPiece, out.numel() - begin);
    at::Tensor piece = out.narrow(0, begin, length);
    at::Tensor sum = in_float ? wide.narrow(0, 0, length) : piece;
    at::Tensor first = parts[0].narrow(0, begin, length);
    if (in_float) {
      sum.copy_(first);
      sum.add_(parts[1].narrow(0, begin, length));
    } else {
      at::add_out(sum, first, parts[1].narrow(0, begin, length));
    }
    for (size_t rank = 2; rank < parts.size(); ++rank) sum.add_(parts[rank].narrow(0, begin, length));
    if (in_float) piece.copy_(sum);
  }
}

}  // namespace fsdp::comm
