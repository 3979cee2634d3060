#include "nn/loss.h"

#include <ATen/ops/cross_entropy_loss.h>

namespace fsdp::nn {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), targets.flatten());
}

}  // namespace fsdp::nn
