#pragma once

// The outcome of a training step, decided on the device that has its loss and its gradients, so that the host
// need not wait for the device before the update.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/kernels/outcome_rule.h"

namespace fsdp::kernels {

/// A StepOutcome in the memory of a device.
class DeviceOutcome {
 public:
  /// Of a run in which nothing has diverged.
  explicit DeviceOutcome(at::Device device);

  /// sums: [2] double on the device, of the ranks' losses and of |g|^norm_type over all gradients; local_loss: []
  /// likewise, this rank's. Enqueues the decision of OutcomeRule; does not wait.
  void decide(const at::Tensor& sums, const at::Tensor& local_loss, const OutcomeRule& rule);

  /// The factor for the gradients of the step last decided: a double on the device; NaN forbids the update.
  at::Tensor gradient_scale() const;

  /// Waits for the device.
  StepOutcome read() const;

 private:
  at::Tensor outcome_;  ///< [kOutcomeNumbers] double
};

}  // namespace fsdp::kernels
