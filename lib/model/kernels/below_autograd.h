#pragma once

// Helpers for the inside of autograd functions, where nothing is recorded. They keep operations out of the
// part of libtorch's dispatcher that records, and make views without the dispatcher: on small tensors each
// costs the host as much as the launch of a kernel.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

namespace fsdp::kernels {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// During the object's lifetime, operations of this thread are neither recorded nor tracked as views.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// Returns a view that autograd does not track, `offset` elements after the first element of x.
at::Tensor strided_view(const at::Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides,
                        int64_t offset = 0);

/// Returns such a view of the transposed matrix. matrix: [n, m] -> [m, n]
inline at::Tensor flipped(const at::Tensor& matrix) {
  return strided_view(matrix, {matrix.size(1), matrix.size(0)}, {matrix.stride(1), matrix.stride(0)});
}

/// Returns such a view with heads before tokens, or the inverse. x: [B, T, H, D] -> [B, H, T, D]
inline at::Tensor with_heads_first(const at::Tensor& x) {
  return strided_view(x, {x.size(0), x.size(2), x.size(1), x.size(3)},
                      {x.stride(0), x.stride(2), x.stride(1), x.stride(3)});
}

}  // namespace fsdp::kernels
