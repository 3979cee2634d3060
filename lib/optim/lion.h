#pragma once

#include "optim/optimizer.h"

namespace fsdp::optim {

/// Lion (Chen et al.: Symbolic discovery of optimization algorithms, 2023, algorithm 2). With gradient g:
///
///   value  *= 1 - lr * weight_decay
///   value  -= lr * sign(beta1 * exp_avg + (1 - beta1) * g)
///   exp_avg = beta2 * exp_avg + (1 - beta2) * g
///
/// Every element moves by lr, so the paper takes a rate 3 to 10 times smaller and a weight decay as many
/// times larger than for AdamW, and betas of 0.9 and 0.99.
class Lion : public Optimizer {
 public:
  /// Throws Error(kUsage) unless there are two betas of at least 0 and below 1.
  Lion(const OptimizerOptions& options, std::vector<FlatParameter> parameters);

 private:
  void update(const Update& update) override;
  void update_fused(const Update& update);
  void update_composed(const Update& update);

  double beta1_ = 0;
  double beta2_ = 0;
  bool fused_;
};

}  // namespace fsdp::optim
