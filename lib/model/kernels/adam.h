#pragma once

// The step of Adam and AdamW (state/optim/element_optimizers.h): one pass over flat shards, on a GPU usually in one
// launch, which also scales gradients for clipping and loss scales. The bits of an element depend neither on its
// place nor on the number of threads.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Elements that are updated alike: all [n], contiguous, on one device.
struct AdamTensors {
  at::Tensor value;     ///< fp32, like the averages
  at::Tensor gradient;  ///< fp32, bf16 or fp16
  at::Tensor exp_avg, exp_avg_sq;
  AdamRates rates = {};
};

/// Updates values and averages in place; all parts are on one device. A gradient_scale that is defined, a double
/// on that device, a GPU, replaces AdamNumbers::gradient_scale; NaN: nothing is updated.
void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale = {});

}  // namespace fsdp::kernels
