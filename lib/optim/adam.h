#pragma once

#include "optim/optimizer.h"

namespace fsdp::optim {

/// Adam (Kingma, Ba: Adam: A method for stochastic optimization, 2015) with the arithmetic of PyTorch's
/// torch.optim.Adam, and AdamW (Loshchilov, Hutter: Decoupled weight decay regularization, 2019) with that of
/// torch.optim.AdamW. At the t-th step in which the parameter has a gradient, g:
///
///   Adam:   g     += weight_decay * value
///   AdamW:  value *= 1 - lr * weight_decay
///   exp_avg    = beta1 * exp_avg + (1 - beta1) * g
///   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
///   value     -= lr / (1 - beta1^t) * exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps)
class Adam : public Optimizer {
 public:
  enum class Decay {
    kInGradient,  ///< Adam
    kDecoupled,   ///< AdamW
  };

  /// Throws Error(kUsage) unless there are two betas of at least 0 and below 1, and eps is not negative.
  Adam(const OptimizerOptions& options, Decay decay, std::vector<FlatParameter> parameters);

 protected:
  void update(const Update& update) override;
  bool scales_gradients_of(const at::Tensor& value) const override;

 private:
  void update_on_gpu(const Update& update);
  void update_fused(const Update& update);
  void update_composed(const Update& update);

  Decay decay_;
  double beta1_ = 0;
  double beta2_ = 0;
  double eps_;
  bool fused_;
};

}  // namespace fsdp::optim
