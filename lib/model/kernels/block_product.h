#pragma once

// Matrix products in blocks that stay in a core's cache, by oneDNN's small products (brgemm, in libtorch).
//
// They need less memory traffic than oneDNN's whole products: a transposed factor is packed block by block,
// and results can be added in place, in fp32, to accumulated gradients of weights. On an AMD EPYC with
// AVX-512, one thread, 256 to 1024 rows: 190 to 200 GFLOP/s in fp32 whichever factor is transposed;
// mkldnn::_linear_pointwise has 170 to 190, and 120 to 155 for the gradient of a weight with its addition.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace fsdp::kernels {

/// Multiplications of small products that are worth another thread.
inline constexpr int64_t kLeastWork = 1 << 20;

/// Whether this CPU and oneDNN's environment (ONEDNN_MAX_CPU_ISA) support small products of the type.
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

/// c (+)= a b. c: [m, n], rows `stride_c` apart; a: [m, k]; b: [k, n], packed (cpu/loops.h).
template <typename T>
void small_product(const SmallShape& shape, const SmallFactor<T>& a, const SmallFactor<T>& b, bool adds,
                   float* c, int64_t stride_c) {
  at::native::cpublas::brgemm(shape.m, shape.n, shape.k, a.stride, b.stride, stride_c, adds, a.data, b.data,
                              c, /*is_vnni=*/!std::is_same_v<T, float>);
}

/// To be called on each thread after its last small product.
inline void end_small_products() { at::native::cpublas::brgemm_release(); }

/// c = a b or, with `adds`, c += a b. c: [m, n], fp32, contiguous; a: [m, k]; b: [k, n], of a's type.
struct ProductOf {
  at::Tensor c, a;
  bool adds;
};

/// Computes `products`, whose right factor is b; it is packed once. The factors' type has_small_products(),
/// and each has contiguous rows or columns. No c overlaps another.
void multiply_all_into(std::span<const ProductOf> products, const at::Tensor& b);

// ---- blocks of factors, here and in tile_product.cpp

/// Memory for a packed factor, which a thread keeps and which grows on demand.
class Scratch {
 public:
  template <typename T>
  T* of(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;  // in case the allocation fails
      memory_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlignment)));
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  int64_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

inline constexpr int64_t kMultiple = 16;  ///< sizes of equal parts are multiples of it

constexpr int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The size, at most `most`, of about equal parts of `whole`.
constexpr int64_t equal_part(int64_t whole, int64_t most, int64_t multiple = kMultiple) {
  const int64_t parts = (whole + most - 1) / most;
  return std::min(most, rounded_up((whole + parts - 1) / parts, multiple));
}

}  // namespace fsdp::kernels
