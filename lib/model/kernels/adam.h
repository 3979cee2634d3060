#pragma once

// The step of Adam and AdamW (state/optim/element_optimizers.h): one pass over flat shards, which also scales
// gradients for clipping and loss scales, usually by one launch on a GPU. The bits of an element depend
// neither on its position nor on the number of threads. Averages in bf16 are computed in fp32, in registers,
// and rounded as round_stochastically() rounds. Averages in 8 bits (block_codes.h) are decoded and encoded on
// the way.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "model/kernels/rows.h"
#include "model/kernels/stochastic_rounding.h"

namespace fsdp::kernels {

/// Elements with the same rates: all [n], contiguous, on one device.
struct AdamTensors {
  at::Tensor value;                ///< fp32
  at::Tensor gradient;             ///< fp32, bf16 or fp16
  at::Tensor exp_avg, exp_avg_sq;  ///< fp32 or bf16, or uint8: codes
  at::Tensor copy = {};            ///< if defined, gets the new values in bf16 or fp16
  AdamRates rates = {};
  /// Indices and keys by which exp_avg and exp_avg_sq are rounded if they are bf16; only the keys differ.
  std::array<RoundedElements, 2> rounded = {};
  /// Scales of exp_avg and exp_avg_sq if these are codes, and the place of the first element in its block.
  /// The elements share no block with others.
  std::array<at::Tensor, 2> scales = {};
  int64_t phase = 0;
};

/// Updates values and averages in place. All parts are on one device. If gradient_scale, a double on that
/// device (a GPU), is defined, it replaces AdamNumbers::gradient_scale; if it is NaN, nothing is updated.
void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale = {});

}  // namespace fsdp::kernels
