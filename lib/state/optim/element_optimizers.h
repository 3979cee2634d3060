#pragma once

// The optimizers that update element by element.

#include "state/optim/optimizer.h"

namespace fsdp::optim {

/// Adam (Kingma, Ba: Adam: A method for stochastic optimization, 2015) with the arithmetic of PyTorch's
/// torch.optim.Adam, and AdamW (Loshchilov, Hutter: Decoupled weight decay regularization, 2019) with the
/// arithmetic of torch.optim.AdamW. At the t-th step in which the parameter has a gradient, g:
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
  void update_together(c10::ArrayRef<Update> updates) override;
  bool updates_in_one_pass(const at::Tensor& value) const override;
  bool takes_stored_states() const override { return options().fused; }

 private:
  void update_composed(const Update& update);

  Decay decay_;
  double beta1_, beta2_, eps_;
};

/// Lion (Chen et al.: Symbolic discovery of optimization algorithms, 2023, algorithm 2). With gradient g:
///
///   value  *= 1 - lr * weight_decay
///   value  -= lr * sign(beta1 * exp_avg + (1 - beta1) * g)
///   exp_avg = beta2 * exp_avg + (1 - beta2) * g
///
/// Every element moves by lr, so the paper uses a 3 to 10 times smaller rate and an equally larger weight
/// decay than for AdamW, and betas of 0.9 and 0.99.
class Lion : public Optimizer {
 public:
  /// Throws Error(kUsage) unless there are two betas of at least 0 and below 1.
  Lion(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;
  void update_fused(const Update& update);

  double beta1_, beta2_;
};

/// Stochastic gradient descent with the arithmetic of PyTorch's torch.optim.SGD. With gradient g:
///
///   g += weight_decay * value
///   with momentum != 0:
///     momentum_buffer = momentum * momentum_buffer + (1 - dampening) * g    the first time: g
///     g = nesterov ? g + momentum * momentum_buffer : momentum_buffer
///   value -= lr * g
///
/// (Sutskever et al.: On the importance of initialization and momentum in deep learning, 2013.)
class Sgd : public Optimizer {
 public:
  /// Throws Error(kUsage) unless the momentum is at least 0 and below 1 and the dampening from 0 to 1. Also
  /// throws for dampening without momentum, and for nesterov without momentum or with dampening.
  Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;
};

}  // namespace fsdp::optim
