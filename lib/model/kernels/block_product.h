#pragma once

// Matrix products in blocks that fit into a core's cache, by oneDNN's small products (brgemm, in libtorch)
// or, in fp32 on CPUs with AVX2 only, by cpu/product.inc.
//
// They cause less memory traffic than oneDNN's whole products: a transposed factor is packed block by block,
// and results can be added in place, in fp32, to accumulated gradients of weights.
//
// On CPUs without bf16 instructions, factors in bf16 are widened when they are packed. The product of two
// bf16 numbers is exact in fp32, so that only the order of a sum differs. Intel's CPUs have such instructions
// (AVX-512 BF16), but outside of the matrix units these do the work of two fp32 instructions in the time of
// four, so factors are widened there too.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

#include "model/kernels/cpu/loops.h"

namespace fsdp::kernels {

/// Number of multiplications that justify another thread.
inline constexpr int64_t kLeastWork = 1 << 20;

/// Whether there are small products of the type on this CPU, in fp32 and bf16 with AVX2.
/// ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA may exclude instructions that the CPU has.
bool has_small_products(at::ScalarType type);

/// Whether small_product() multiplies bf16 here.
bool has_bf16_instructions();

/// Whether small products widen factors in bf16. Depends on the machine only.
bool widens_bf16();

struct SmallShape {
  int64_t m, n, k;
};

/// A factor of T = float or at::BFloat16.
template <typename T>
struct SmallFactor {
  const T* data;
  int64_t stride;  ///< distance of rows in elements
};

/// c (+)= a b. c: [m, n], rows `stride_c` apart; a: [m, k]; b: [k, n], packed (cpu/loops.h).
template <typename T>
void small_product(const SmallShape& shape, const SmallFactor<T>& a, const SmallFactor<T>& b, bool adds,
                   float* c, int64_t stride_c) {
  if constexpr (std::is_same_v<T, float>) {
    if (const auto own = cpu::packing(cpu::Element::kFloat)->product) {
      return own({.a = a.data,
                  .b = b.data,
                  .c = c,
                  .m = shape.m,
                  .n = shape.n,
                  .k = shape.k,
                  .stride_a = a.stride,
                  .stride_b = b.stride,
                  .stride_c = stride_c,
                  .adds = adds});
    }
  }
  at::native::cpublas::brgemm(shape.m, shape.n, shape.k, a.stride, b.stride, stride_c, adds, a.data, b.data,
                              c, /*is_vnni=*/!std::is_same_v<T, float>);
}

/// Releases oneDNN's state of this thread. Must be called on each thread after its last small product.
inline void end_small_products() { at::native::cpublas::brgemm_release(); }

/// A product c = a b or, if `adds`, c += a b. a: [m, k]; b: [k, n], of a's type; c: [m, n], contiguous, in
/// fp32 or, if widens_bf16(), in bf16, rounded once.
struct ProductOf {
  at::Tensor c, a;
  bool adds;
};

/// Computes `products`, whose right factor is b, which is packed once. Requires: has_small_products() of the
/// factors' type, factors with contiguous rows or columns, no overlap between the c's.
void multiply_all_into(std::span<const ProductOf> products, const at::Tensor& b);

// ---- blocks of factors, also used by tile_product.cpp

/// Memory for a packed factor, which a thread keeps and grows on demand.
class FactorMemory {
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

inline constexpr int64_t kMultiple = 16;  ///< sizes of equal parts are multiples of this number

constexpr int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Returns the size, at most `most`, of approximately equal parts of `whole`.
constexpr int64_t equal_part(int64_t whole, int64_t most, int64_t multiple = kMultiple) {
  const int64_t parts = (whole + most - 1) / most;
  return std::min(most, rounded_up((whole + parts - 1) / parts, multiple));
}

}  // namespace fsdp::kernels
