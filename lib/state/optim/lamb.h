#pragma once

#include "state/optim/tensor_optimizer.h"

namespace fsdp::optim {

/// LAMB (You et al.: Large batch optimization for deep learning: Training BERT in 76 minutes, 2020) with the
/// arithmetic of fairseq's lamb, which is Apex's FusedLAMB, but for the clipping of gradients, which is
/// training.max_grad_norm here. For each tensor with gradient g, at its t-th step:
///
///   exp_avg    = beta1 * exp_avg + (1 - beta1) * g
///   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
///   direction  = exp_avg / (1 - beta1^t) / (sqrt(exp_avg_sq / (1 - beta2^t)) + eps) + weight_decay * value
///   value     -= lr * |value| / |direction| * direction
///
/// with 2-norms over the whole tensor. Like fairseq's lamb, it leaves out the ratio of the norms for tensors
/// without weight decay, usually biases and norms (optimizer.no_decay), and if one of the norms is 0.
///
/// A step communicates two numbers per tensor, in one all-reduce per unit.
class Lamb final : public TensorOptimizer {
 public:
  /// Throws Error(kUsage) unless there are two betas of at least 0 and below 1, and eps is not negative.
  Lamb(const OptimizerOptions& options, std::vector<FlatParameter> parameters, WholeMatrices* matrices);

 private:
  void update_ranges(size_t i, const at::Tensor& gradient, double lr, double gradient_scale) override;

  double beta1_, beta2_, eps_;
};

}  // namespace fsdp::optim
