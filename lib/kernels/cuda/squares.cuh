#pragma once

// The sum of squares in double precision (kernels/reduce.h).

#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/packs.cuh"
#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

struct Squares {
  const void* x = nullptr;
  int64_t n = 0;
  double* parts = nullptr;  ///< a sum of each block
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
  double* sum = nullptr;            ///< or
  float* rounded = nullptr;
};

/// The sum of values / divisor, by one block.
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

/// scratch: [kSquareParts]
template <typename T, typename Launch>
void sum_of_squares(const Launch& launch, const void* x, int64_t n, double* scratch, double* sum) {
  // So many elements a block that its own sum is the smaller part of its work.
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
