#pragma once

// The step of Adam and AdamW (optim/adam.h) on a GPU in one pass over a flat shard, which scales gradients,
// for clipping and loss scales, on the way. Other devices have libtorch's step.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/rows.h"

namespace fsdp::kernels {

/// All [n], contiguous, of one device.
struct AdamTensors {
  at::Tensor value;     ///< fp32, as are the averages
  at::Tensor gradient;  ///< fp32 or bf16
  at::Tensor exp_avg, exp_avg_sq;
};

/// Whether there is a kernel for such values; gradients of other types than fp32 and bf16 have none.
bool can_step_adam(const at::Tensor& value);

/// Updates value and averages in place.
void step_adam(const AdamTensors& tensors, const AdamNumbers& numbers);

}  // namespace fsdp::kernels
