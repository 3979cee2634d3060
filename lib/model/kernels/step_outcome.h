#pragma once

// The outcome of a training step, decided on the device that has its loss and its gradients, so that the host
// need not wait for the device before the update.

#include <ATen/core/Tensor.h>

#include "model/kernels/outcome_rule.h"

namespace fsdp::kernels {

/// A StepOutcome in the memory of a device.
class DeviceOutcome {
 public:
  /// Creates the outcome of a run in which nothing has diverged.
  explicit DeviceOutcome(at::Device device);

  /// Enqueues the decision of OutcomeRule, without waiting. sums: [2] double on the device, of the ranks'
  /// losses and of |g|^norm_type over all gradients; local_loss: [] double on the device, this rank's loss.
  void decide(const at::Tensor& sums, const at::Tensor& local_loss, const OutcomeRule& rule);

  /// Returns the factor for the gradients of the last step: a double on the device; NaN forbids the update.
  at::Tensor gradient_scale() const;

  /// Copies the outcome to the host, which waits for the device.
  StepOutcome read() const;

 private:
  at::Tensor outcome_;  ///< [kOutcomeNumbers] double
};

}  // namespace fsdp::kernels
