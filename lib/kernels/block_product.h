#pragma once

// Matrix products in blocks that stay in a core's cache, by oneDNN's small products (brgemm, inside
// libtorch).
//
// Against whole products of oneDNN they save memory traffic: a transposed factor is packed block by block,
// and results are added to what is there, in fp32, where gradients of weights accumulate. On an AMD EPYC with
// AVX-512, one thread, 256 to 1024 rows: 190 to 200 GFLOP/s in fp32 whichever factor is transposed, where
// mkldnn::_linear_pointwise has 170 to 190, and 120 to 155 for the gradient of a weight and its addition.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#include <cstdint>
#include <span>
#include <type_traits>

namespace fsdp::kernels {

/// Multiplications of small products that are worth a thread.
inline constexpr int64_t kLeastWork = 1 << 20;

/// Whether this CPU, and oneDNN in this environment (ONEDNN_MAX_CPU_ISA), have small products of the type.
bool has_small_products(at::ScalarType type);

struct SmallShape {
  int64_t m, n, k;
};

/// A factor of T = float or at::BFloat16.
template <typename T>
struct SmallFactor {
  const T* data;
  int64_t stride;  ///< elements from row to row
};

/// c [m, n], rows `stride_c` apart, = a [m, k] b, or is added to. b is packed, [k, n] (cpu/packing.h).
template <typename T>
void small_product(const SmallShape& shape, const SmallFactor<T>& a, const SmallFactor<T>& b, bool adds,
                   float* c, int64_t stride_c) {
  at::native::cpublas::brgemm(shape.m, shape.n, shape.k, a.stride, b.stride, stride_c, adds, a.data, b.data,
                              c, /*is_vnni=*/!std::is_same_v<T, float>);
}

/// To be called by each thread after its last small product.
inline void end_small_products() { at::native::cpublas::brgemm_release(); }

/// c [m, n], fp32 and contiguous, = a [m, k] b, or is added to, for a right factor b [k, n] of the type of a.
struct ProductOf {
  at::Tensor c, a;
  bool adds;
};

/// Computes all of `products`, which share the right factor b, packed once. Their type has_small_products(); in
/// each factor, rows or columns are contiguous. No c overlaps another.
void multiply_all_into(std::span<const ProductOf> products, const at::Tensor& b);

}  // namespace fsdp::kernels
