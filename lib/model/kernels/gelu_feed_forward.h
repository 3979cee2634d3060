#pragma once

#include <ATen/core/Tensor.h>

#include "model/kernels/matmul.h"
#include "model/kernels/product_epilogues.h"

namespace fsdp::kernels {

/// Weights as transposed_linear() takes them, and biases.
struct GeluFeedForwardLayers {
  at::Tensor up, up_bias, down, down_bias;
};

/// Whether gelu_feed_forward() is for this x: trials choose products on its GPU (product_choices.h).
bool can_feed_forward(const at::Tensor& x, const GeluFeedForwardLayers& layers);

/// Returns gelu(x up + up_bias) down + down_bias (+ addend), with gelu in the tanh form (fused.h), as one
/// function, whose products compute gelu and its gradient where that is chosen. x: [..., D], up: [D, I],
/// down: [I, D]. `addend`: null for none.
at::Tensor gelu_feed_forward(const at::Tensor& x, const GeluFeedForwardLayers& layers, Matmul matmul,
                             Addend* addend);

}  // namespace fsdp::kernels
