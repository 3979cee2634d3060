#pragma once

// kernels/adam.h: every element by itself, so that a shard is updated the same whole or in parts.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"

namespace fsdp::kernels::cuda {

template <typename Gradient, typename Shape>
struct AdamKernel {
  using Arguments = AdamElements;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    constexpr int kPack = Shape::kPack;
    const int64_t first = Shape::first(), count = a.n - first;
    if (count <= 0) return;
    const AdamNumbers& numbers = a.numbers;
    const auto gradient = load_pack<kPack>(static_cast<const Gradient*>(a.gradient) + first, count);
    auto value = load_pack<kPack>(a.value + first, count);
    auto exp_avg = load_pack<kPack>(a.exp_avg + first, count);
    auto exp_avg_sq = load_pack<kPack>(a.exp_avg_sq + first, count);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float g = to_float(gradient.at[i]) * numbers.gradient_scale + numbers.decay * value.at[i];
      const float m = numbers.beta1 * exp_avg.at[i] + numbers.one_minus_beta1 * g;
      const float v = numbers.beta2 * exp_avg_sq.at[i] + numbers.one_minus_beta2 * g * g;
      const float denominator = ::sqrtf(v) / numbers.second_correction + numbers.eps;
      value.at[i] = numbers.keep * value.at[i] - numbers.step_size * (m / denominator);
      exp_avg.at[i] = m;
      exp_avg_sq.at[i] = v;
    }
    store_pack(a.value + first, value, count);
    store_pack(a.exp_avg + first, exp_avg, count);
    store_pack(a.exp_avg_sq + first, exp_avg_sq, count);
  }
};

template <typename Gradient, typename Launch>
void adam(const Launch& launch, const AdamElements& a) {
  auto with_shape = [&](auto shape) {
    using Shape = decltype(shape);
    launch.template run<AdamKernel<Gradient, Shape>>(Shape::grid(a.n), a);
  };
  const bool fit =
      fit_packs<float>(0, a.value, a.exp_avg, a.exp_avg_sq) && fit_packs<Gradient>(0, a.gradient);
  fit ? with_shape(ElementShape<kPackOf<float>>()) : with_shape(ElementShape<1>());
}

}  // namespace fsdp::kernels::cuda
