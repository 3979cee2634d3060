#include "nn/embedding.h"

#include <ATen/ops/embedding.h>

#include "kernels/embedding.h"
#include "kernels/fused.h"
#include "nn/loss.h"
#include "nn/parameter.h"

namespace fsdp::nn {

Embedding::Embedding(int64_t count, int64_t size, const Compute& compute) : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({count, size}));
}

at::Tensor Embedding::compute(const at::Tensor& ids, const StageContext&) {
  return compute_.fused ? kernels::embedding(weight_, ids) : at::embedding(weight_, ids);
}

Head::Head(int64_t hidden_size, int64_t vocab_size, const Compute& compute) : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({vocab_size, hidden_size}));
}

Head::Head(const at::Tensor& embedding_weight, const Compute& compute) : compute_(compute) {
  weight_ = register_parameter("weight", embedding_weight);
}

at::Tensor Head::compute(const at::Tensor& x, const StageContext& context) {
  const at::Tensor& targets = context.targets;
  if (targets.defined() && compute_.fused && kernels::can_fuse(x) &&
      weight_.scalar_type() == x.scalar_type()) {
    return kernels::linear_cross_entropy(x.flatten(0, -2), weight_, targets.flatten(), compute_.matmul,
                                         context.loss_terms);
  }
  const at::Tensor logits = kernels::linear(x, weight_, compute_.matmul);
  return targets.defined() ? next_token_loss(logits, targets, context.loss_terms) : logits;
}

}  // namespace fsdp::nn
