#pragma once

// For the inside of autograd functions, where nothing is recorded: what keeps operations there from the part of
// libtorch's dispatcher that records, and views that need no dispatcher. On small tensors each costs the host as
// much as the launch of a kernel.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// While it lives, operations of this thread are neither recorded nor followed as views.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// A view that autograd does not follow, `offset` elements behind the first element of x.
at::Tensor strided_view(const at::Tensor& x, at::IntArrayRef sizes, at::IntArrayRef strides,
                        int64_t offset = 0);

/// matrix: [n, m] -> [m, n], such a view.
inline at::Tensor flipped(const at::Tensor& matrix) {
  return strided_view(matrix, {matrix.size(1), matrix.size(0)}, {matrix.stride(1), matrix.stride(0)});
}

/// x: [B, T, H, D] -> [B, H, T, D], or back, such a view.
inline at::Tensor with_heads_first(const at::Tensor& x) {
  return strided_view(x, {x.size(0), x.size(2), x.size(1), x.size(3)},
                      {x.stride(0), x.stride(2), x.stride(1), x.stride(3)});
}

}  // namespace fsdp::kernels
