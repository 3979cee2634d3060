#pragma once

// Rotary position embedding (model/kernels/fused.h): a thread rotates a pack of the first half of a head with
// the corresponding pack of the second half.

#include "model/kernels/cuda/packs.cuh"
#include "model/kernels/rows.h"

namespace fsdp::kernels::cuda {

struct RotaryArguments {
  RotaryRows rows;
  int packs;        ///< number of packs of half a head
  int row_threads;  ///< threads of a block per row, a power of two
};

template <typename T, int kPack>
struct RotaryKernel {
  using Arguments = RotaryArguments;
  using Shared = Nothing;
  static constexpr int kThreads = 256;

  FSDP_DEVICE static void run(const Arguments& arguments, Shared&) {
    const RotaryRows& a = arguments.rows;
    const int row_threads = arguments.row_threads, packs = arguments.packs;
    const int64_t row = block() * (kThreads / row_threads) + thread() / row_threads;
    if (row >= a.rows) return;
    const int half = static_cast<int>(a.head_dim / 2), items = static_cast<int>(a.heads) * packs;
    const int64_t token = (a.first + row) % a.tokens, offset = row * a.stride;
    const float* cos = a.cos + token * a.head_dim;
    const float* sin = a.sin + token * a.head_dim;
    const T* x = static_cast<const T*>(a.x) + offset;
    T* y = static_cast<T*>(a.y) + offset;
    const float sign = a.back ? -1.0F : 1.0F;
    for (int item = thread() % row_threads; item < items; item += row_threads) {
      const int head = item / packs, at = (item - head * packs) * kPack;
      const int64_t one = static_cast<int64_t>(head) * a.head_dim + at, two = one + half;
      auto first = load_pack<kPack>(x + one), second = load_pack<kPack>(x + two);
      float cos_first[kPack], sin_first[kPack], cos_second[kPack], sin_second[kPack];
      load_floats(cos + at, cos_first);
      load_floats(sin + at, sin_first);
      load_floats(cos + at + half, cos_second);
      load_floats(sin + at + half, sin_second);
      FSDP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float u = to_float(first.at[i]), v = to_float(second.at[i]);
        first.at[i] = T(u * cos_first[i] - sign * v * sin_first[i]);
        second.at[i] = T(v * cos_second[i] + sign * u * sin_second[i]);
      }
      store_pack(y + one, first);
      store_pack(y + two, second);
    }
  }
};

template <typename T, typename Launch>
void rotary(const Launch& launch, const RotaryRows& a) {
  const int64_t half = a.head_dim / 2;
  auto with_pack = [&]<int kPack>() {
    using Kernel = RotaryKernel<T, kPack>;
    const auto packs = static_cast<int>(half / kPack);
    int row_threads = 1;
    while (row_threads < Kernel::kThreads && row_threads < a.heads * packs) row_threads *= 2;
    const int64_t rows_of_block = Kernel::kThreads / row_threads;
    const Grid grid{(a.rows + rows_of_block - 1) / rows_of_block};
    launch.template run<Kernel>(grid, {.rows = a, .packs = packs, .row_threads = row_threads});
  };
  const bool fit = fit_packs<T>(half, a.x, a.y) && fit_packs<T>(a.stride) && fit_packs<T>(0, a.cos, a.sin);
  fit ? with_pack.template operator()<kPackOf<T>>() : with_pack.template operator()<1>();
}

}  // namespace fsdp::kernels::cuda
