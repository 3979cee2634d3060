#pragma once

// The step of Adam and AdamW (state/optim/element_optimizers.h): one pass over flat shards, which also scales
// gradients for clipping and loss scales, usually by one launch on a GPU. The bits of an element depend
// neither on its position nor on the number of threads.

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Elements with the same rates: all [n], contiguous, on one device.
struct AdamTensors {
  at::Tensor value;     ///< fp32, like the averages
  at::Tensor gradient;  ///< fp32, bf16 or fp16
  at::Tensor exp_avg, exp_avg_sq;
  at::Tensor copy = {};  ///< if defined, gets the new values in bf16 or fp16
  AdamRates rates = {};
};

/// Updates values and averages in place. All parts are on one device. If gradient_scale, a double on that
/// device (a GPU), is defined, it replaces AdamNumbers::gradient_scale; if it is NaN, nothing is updated.
void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale = {});

}  // namespace fsdp::kernels
