#pragma once

#include "optim/optimizer.h"

namespace fsdp::optim {

/// Stochastic gradient descent with the arithmetic of PyTorch's torch.optim.SGD (no dampening, no Nesterov).
/// With gradient g:
///
///   g += weight_decay * value
///   momentum_buffer = momentum * momentum_buffer + g      only when momentum != 0, g := momentum_buffer
///   value -= lr * g
class Sgd : public Optimizer {
 public:
  /// Throws Error(kUsage) unless the momentum is at least 0 and below 1.
  Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;
  void update_fused(const Update& update);
  void update_composed(const Update& update);

  double momentum_;
  bool fused_;
};

}  // namespace fsdp::optim
