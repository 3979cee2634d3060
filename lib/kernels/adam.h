#pragma once

// The step of Adam and AdamW (optim/element_optimizers.h) on a GPU, in one pass over a flat shard, which also
// scales gradients for clipping and loss scales. On other devices libtorch has such a step.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/rows.h"

namespace fsdp::kernels {

/// All [n], contiguous, on one device.
struct AdamTensors {
  at::Tensor value;     ///< fp32, like the averages
  at::Tensor gradient;  ///< fp32 or bf16
  at::Tensor exp_avg, exp_avg_sq;
  /// In place of AdamNumbers::gradient_scale, if defined: a double on that device; NaN: nothing is updated.
  at::Tensor gradient_scale = {};
};

/// Whether there is a kernel for such values, with fp32 or bf16 gradients.
bool can_step_adam(const at::Tensor& value);

/// Updates value and averages in place.
void step_adam(const AdamTensors& tensors, const AdamNumbers& numbers);

}  // namespace fsdp::kernels
