#include "nn/dropout.h"

#include "kernels/dropout.h"
#include "util/hash.h"

namespace fsdp::nn {

at::Tensor dropout(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context) {
  if (p == 0 || !context.dropout) return x;
  const auto site = static_cast<uint64_t>(context.layer) * 8 + static_cast<uint64_t>(place);
  const uint64_t key = util::mix64(context.dropout->key ^ util::mix64(site));
  return kernels::dropout(x, p, key, context.dropout->first_row);
}

}  // namespace fsdp::nn
