#pragma once

// Sums by blocks: of the threads' values, and of the squares of a tensor (model/kernels/reduce.h).

#include <algorithm>

#include "model/kernels/cuda/packs.cuh"
#include "model/kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

/// Combines the values of a block's kThreads threads in a fixed order: by shuffles within warps, then warp by
/// warp. Must be called by all threads of the block, once per Shared.
template <typename T, int kThreads>
struct BlockReduction {
  struct Shared {
    T of_warps[kThreads / kWarp];
  };

  /// Returns the result to all threads. Requires: combine(a, b) = combine(b, a).
  template <typename Combine>
  FSDP_DEVICE static T of(T value, Shared& shared, const Combine& combine) {
    FSDP_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
    if (lane() == 0) shared.of_warps[warp()] = value;
    sync_block();
    T result = shared.of_warps[0];
    for (int w = 1; w < kThreads / kWarp; ++w) result = combine(result, shared.of_warps[w]);
    return result;
  }

  FSDP_DEVICE static T sum(T value, Shared& shared) {
    return of(value, shared, [](T a, T b) { return a + b; });
  }
};

struct Squares {
  const void* x = nullptr;
  int64_t n = 0;
  double* parts = nullptr;  ///< sum of each block
};

template <typename T, int kPack>
struct SquaresKernel {
  using Arguments = Squares;
  static constexpr int kThreads = 256;
  using Sum = BlockReduction<double, kThreads>;
  using Shared = typename Sum::Shared;

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    const T* x = static_cast<const T*>(a.x);
    const int64_t stride = blocks() * kThreads * kPack;
    double sum = 0;
    FSDP_UNROLL_BY(4)
    for (int64_t first = (block() * kThreads + thread()) * kPack; first < a.n; first += stride) {
      const auto pack = load_pack<kPack>(x + first, a.n - first);
      FSDP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const auto value = static_cast<double>(to_float(pack.at[i]));
        sum += value * value;
      }
    }
    sum = Sum::sum(sum, shared);
    if (thread() == 0) a.parts[block()] = sum;
  }
};

struct Doubles {
  const double* values = nullptr;
  int64_t n = 0;
  const double* divisor = nullptr;  ///< null: 1
  double* sum = nullptr;            ///< result, if not null
  float* rounded = nullptr;         ///< result, if not null
};

/// Computes the sum of values / divisor, by one block.
struct SumKernel {
  using Arguments = Doubles;
  static constexpr int kThreads = 1024;
  using Sum = BlockReduction<double, kThreads>;
  using Shared = Sum::Shared;

  FSDP_DEVICE static void run(const Arguments& a, Shared& shared) {
    double sum = 0;
    for (int64_t i = thread(); i < a.n; i += kThreads) sum += a.values[i];
    sum = Sum::sum(sum, shared);
    if (thread() != 0) return;
    if (a.divisor != nullptr) sum /= *a.divisor;
    if (a.sum != nullptr) *a.sum = sum;
    if (a.rounded != nullptr) *a.rounded = static_cast<float>(sum);
  }
};

/// Computes the sum of squares. scratch: [kSquareParts]
template <typename T, typename Launch>
void sum_of_squares(const Launch& launch, const void* x, int64_t n, double* scratch, double* sum) {
  // Each block has so many elements that the reduction within it is the smaller part of its work.
  const int64_t parts = std::clamp<int64_t>(n / 8192, 1, kSquareParts);
  const Squares squares{.x = x, .n = n, .parts = scratch};
  if (fit_packs<T>(0, x)) {
    launch.template run<SquaresKernel<T, kPackOf<T>>>(Grid{parts}, squares);
  } else {
    launch.template run<SquaresKernel<T, 1>>(Grid{parts}, squares);
  }
  launch.template run<SumKernel>(Grid{1}, {.values = scratch, .n = parts, .sum = sum});
}

}  // namespace fsdp::kernels::cuda
