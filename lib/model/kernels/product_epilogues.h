#pragma once

// Products on a GPU whose kernel also computes what follows them or what a gradient needs beside them, where
// trials have found that faster (product_choices.h). Without choices nothing here computes.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "model/kernels/cuda/products.h"

namespace fsdp::kernels {

/// A tensor that a product's kernel may add to the product.
struct Addend {
  at::Tensor x;           ///< of the product's shape
  bool is_added = false;  ///< set by the product
  /// Whether the kernel that would add x otherwise does more than that, so that only a part of it is saved.
  bool is_in_another_pass = false;
};

/// Computes the product, if it is chosen. Otherwise returns false, possibly after trials, in which
/// `otherwise` computed it several times.
bool multiply_if_chosen(const cuda::GpuProduct& product, const std::function<void()>& otherwise);

/// Returns a b (+ bias), and adds the addend, if that is chosen. bias: undefined for none.
at::Tensor product_with(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Addend& addend);

struct LayerGradients {
  at::Tensor weight, bias;  ///< undefined if their sinks have received them (gradient_sink.h)
};
/// Computes the gradients of a layer y = x W + b by one kernel, if that is chosen. x: [N, in], dy: [N, out].
/// `only_tries`: lets a trial choose, if none has, and computes nothing.
std::optional<LayerGradients> gradients_at_once(const at::Tensor& weight, const at::Tensor& bias,
                                                const at::Tensor& x, const at::Tensor& dy,
                                                bool only_tries = false);

}  // namespace fsdp::kernels
