#pragma once

// The step of Adam and AdamW (optim/element_optimizers.h) on a GPU: one pass over flat shards, usually in one
// launch, which also scales gradients for clipping and loss scales. On other devices libtorch has such a step.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/rows.h"

namespace fsdp::kernels {

/// Elements that are updated alike: all [n], contiguous, on one device.
struct AdamTensors {
  at::Tensor value;     ///< fp32, like the averages
  at::Tensor gradient;  ///< fp32, bf16 or fp16
  at::Tensor exp_avg, exp_avg_sq;
  AdamRates rates = {};
};

/// Whether there is a kernel for such values.
bool can_step_adam(const at::Tensor& value);

/// Updates values and averages in place; all parts are on one device. A gradient_scale that is defined, a double
/// on that device, replaces AdamNumbers::gradient_scale; NaN: nothing is updated.
void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale = {});

}  // namespace fsdp::kernels
