#pragma once

#include "optim/optimizer.h"

namespace fsdp::optim {

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
  /// Throws Error(kUsage) unless the momentum is at least 0 and below 1 and the dampening from 0 to 1; for
  /// dampening without momentum, and for Nesterov's momentum without momentum or with dampening.
  Sgd(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  bool fills_buffers(const Update& update) const;
  void update(const Update& update) override;
  void update_fused(const Update& update);
  void update_composed(const Update& update);

  double momentum_, dampening_;
  bool nesterov_;
  bool fused_;
};

}  // namespace fsdp::optim
