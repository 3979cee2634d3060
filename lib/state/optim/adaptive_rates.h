#pragma once

// Optimizers other than Adam and AdamW that adapt the rate of each element.

#include "state/optim/optimizer.h"

namespace fsdp::optim {

/// Adagrad (Duchi et al.: Adaptive subgradient methods for online learning and stochastic optimization, 2011)
/// with the arithmetic of PyTorch's torch.optim.Adagrad. With gradient g:
///
///   g     += weight_decay * value
///   sum   += g^2
///   value -= lr * g / (sqrt(sum) + eps)
class Adagrad : public Optimizer {
 public:
  /// Throws Error(kUsage) if eps is negative.
  Adagrad(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;

  double eps_;
};

/// Adadelta (Zeiler: ADADELTA: An adaptive learning rate method, 2012) with the arithmetic of PyTorch's
/// torch.optim.Adadelta, whose usual rate is 1. With gradient g:
///
///   g         += weight_decay * value
///   square_avg = rho * square_avg + (1 - rho) * g^2
///   delta      = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * g
///   acc_delta  = rho * acc_delta + (1 - rho) * delta^2
///   value     -= lr * delta
class Adadelta : public Optimizer {
 public:
  /// Throws Error(kUsage) unless rho is from 0 to 1 and eps is not negative.
  Adadelta(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;

  double eps_;
};

/// Adamax (Kingma, Ba: Adam: A method for stochastic optimization, 2015, section 7.1) with the arithmetic of
/// PyTorch's torch.optim.Adamax. At the t-th step in which the parameter has a gradient, g:
///
///   g      += weight_decay * value
///   exp_avg = beta1 * exp_avg + (1 - beta1) * g
///   exp_inf = max(beta2 * exp_inf, |g| + eps)
///   value  -= lr / (1 - beta1^t) * exp_avg / exp_inf
class Adamax : public Optimizer {
 public:
  /// Throws Error(kUsage) unless there are two betas of at least 0 and below 1, and eps is not negative.
  Adamax(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;

  double beta1_, beta2_, eps_;
};

}  // namespace fsdp::optim
