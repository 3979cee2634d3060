#include "nn/loss.h"

#include <ATen/ops/cross_entropy_loss.h>

namespace fsdp::nn {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).flatten(0, 1), targets.flatten());
}

at::Tensor loss_of(Stage& model, const at::Tensor& ids, const at::Tensor& targets) {
  StageContext context;
  context.targets = targets;
  at::Tensor output = model.forward(ids, context);
  return output.dim() == 0 ? output : next_token_loss(output, targets);
}

}  // namespace fsdp::nn
