#pragma once

// Kernels over elements, not rows: scaling, Adam, and the outcome of a step.

#include <algorithm>
#include <cstdint>

#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/packs.cuh"

namespace fsdp::kernels::cuda {

/// A shape with one pack per thread; the last pack may be short.
template <int kPackSize>
struct ElementShape {
  static constexpr int kPack = kPackSize;
  static constexpr int kThreads = 256;
  /// Index of the first element of a thread of the n-th block.
  FSDP_DEVICE static int64_t first(int64_t n = block()) { return (n * kThreads + thread()) * kPack; }
  static Grid grid(int64_t n) {
    constexpr int64_t kOfBlock = static_cast<int64_t>(kThreads) * kPack;
    return {(n + kOfBlock - 1) / kOfBlock};
  }
};

/// Calls use(ElementShape()) with packs of 16 bytes or, if these do not fit, of one element.
template <typename T, typename Use>
void with_element_shape(bool packs_fit, const Use& use) {
  packs_fit ? use(ElementShape<kPackOf<T>>()) : use(ElementShape<1>());
}

#define FSDP_ROUNDING FSDP_DEVICE
#include "model/kernels/rounded_bits.inc"
#undef FSDP_ROUNDING

/// Returns the bf16 to which round_stochastically() rounds the element at this index of its tensor.
FSDP_DEVICE uint16_t rounded_bits(float value, int64_t index, uint64_t key) {
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32U);
  const uint32_t keys[2] = {static_cast<uint32_t>(key),
                            static_cast<uint32_t>(key >> 32U) ^ (high * kOfHighWord)};
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return ToBFloat16::of(bits, random_bits(static_cast<uint32_t>(index), keys));
}

inline constexpr int64_t kMostScalingBlocks = 4096;

struct Scaling {
  void* x = nullptr;
  int64_t n = 0;
  const float* factor = nullptr;
};

template <typename T, typename Shape>
struct ScaleKernel {
  using Arguments = Scaling;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    const float factor = *a.factor;
    if (factor == 1) return;
    for (int64_t n = block(); Shape::first(n) < a.n; n += blocks()) {
      const int64_t first = Shape::first(n), count = a.n - first;
      T* x = static_cast<T*>(a.x) + first;
      auto pack = load_pack<Shape::kPack>(x, count);
      FSDP_UNROLL
      for (int i = 0; i < Shape::kPack; ++i) pack.at[i] = T(to_float(pack.at[i]) * factor);
      store_pack(x, pack, count);
    }
  }
};

template <typename T, typename Launch>
void scale(const Launch& launch, const Scaling& a) {
  with_element_shape<T>(fit_packs<T>(0, a.x), [&](auto shape) {
    using Shape = decltype(shape);
    // The factor is nearly always 1, for which even the start of a block for each pack of all logits counts.
    const Grid grid{std::min(Shape::grid(a.n).x, kMostScalingBlocks)};
    launch.template run<ScaleKernel<T, Shape>>(grid, a);
  });
}

/// The elements that one launch of Adam updates. The arguments of a kernel are limited to 4 KB.
template <typename Elements>
struct AdamTableOf {
  static constexpr int kParts = sizeof(Elements) == sizeof(AdamElements) ? 56 : 34;
  static constexpr int kLargestStep = 32;         ///< of the search: the largest power of two below kParts
  static constexpr int64_t kBlocks = 0x7fffffff;  ///< limit on the blocks of a launch

  Elements parts[kParts] = {};
  int32_t first_block[kParts] = {};  ///< first block of each part, ascending
  int32_t blocks = 0;
  int count = 0;  ///< number of parts
  AdamNumbers numbers;
  const double* gradient_scale = nullptr;
  /// Whether copies are fp16. Wide, because GCC 12 clears padding behind a large array at a wrong place,
  /// where the stand-in for CUDA asks for it.
  int64_t copies_are_half = 0;

  /// Returns the part to which a block of the launch belongs.
  FSDP_DEVICE int part_of(int64_t block) const {
    int part = 0;
    FSDP_UNROLL
    for (int step = kLargestStep; step > 0; step /= 2) {
      if (part + step < count && first_block[part + step] <= block) part += step;
    }
    return part;
  }
};
using AdamTable = AdamTableOf<AdamElements>;
static_assert(sizeof(AdamTable) <= 4096 && sizeof(AdamTableOf<RoundedAdamElements>) <= 4096);

/// Stores values in 16 bits. Requires: `to` has the alignment of the pack.
template <typename T, int kCount>
FSDP_DEVICE void store_rounded(void* to, int64_t first, const Pack<float, kCount>& values, int64_t count) {
  store_pack(static_cast<T*>(to) + first, rounded<T, kCount>(values.at), count);
}

template <int kPack>
FSDP_DEVICE Pack<float, kPack> load_average(const float* from, int64_t count) {
  return load_pack<kPack>(from, count);
}
template <int kPack>
FSDP_DEVICE Pack<float, kPack> load_average(const uint16_t* from, int64_t count) {
  return floats_of(load_pack<kPack>(reinterpret_cast<const c10::BFloat16*>(from), count));
}

template <int kPack>
FSDP_DEVICE void store_averages(const AdamElements& a, int64_t first, const Pack<float, kPack>& exp_avg,
                                const Pack<float, kPack>& exp_avg_sq, int64_t count) {
  store_pack(a.exp_avg + first, exp_avg, count);
  store_pack(a.exp_avg_sq + first, exp_avg_sq, count);
}

/// Rounds stochastically.
template <int kPack>
FSDP_DEVICE void store_averages(const RoundedAdamElements& a, int64_t first,
                                const Pack<float, kPack>& exp_avg, const Pack<float, kPack>& exp_avg_sq,
                                int64_t count) {
  const RoundedPlaces& at = a.places;
  int64_t index = at.origin + at.first + first, left = kPack;
  if (at.gap != 0) {
    const int64_t row = (at.first + first) / at.length;
    index += row * at.gap;
    left = (row + 1) * at.length - at.first - first;
  }
  Pack<uint16_t, kPack> m, v;
  FSDP_UNROLL
  for (int i = 0; i < kPack; ++i) {
    m.at[i] = rounded_bits(exp_avg.at[i], index, a.keys[0]);
    v.at[i] = rounded_bits(exp_avg_sq.at[i], index, a.keys[1]);
    ++index;
    if (--left == 0) {
      index += at.gap;
      left = at.length;
    }
  }
  store_pack(a.exp_avg + first, m, count);
  store_pack(a.exp_avg_sq + first, v, count);
}

// Adam (model/kernels/adam.h). Elements are independent, so a shard gets the same bits whole or in parts.
template <typename Gradient, typename Shape, typename Elements = AdamElements>
struct AdamKernel {
  using Arguments = AdamTableOf<Elements>;
  using Shared = Nothing;
  static constexpr int kThreads = Shape::kThreads;

  FSDP_DEVICE static void run(const Arguments& table, Shared&) {
    constexpr int kPack = Shape::kPack;
    const int part = table.part_of(block());
    const Elements& a = table.parts[part];
    const int64_t first = Shape::first(block() - table.first_block[part]), count = a.n - first;
    if (count <= 0) return;
    const AdamNumbers& numbers = table.numbers;
    const AdamRates& rates = a.rates;
    const float scale =
        table.gradient_scale != nullptr ? static_cast<float>(*table.gradient_scale) : numbers.gradient_scale;
    if (scale != scale) return;
    const auto gradient = load_pack<kPack>(static_cast<const Gradient*>(a.gradient) + first, count);
    auto value = load_pack<kPack>(a.value + first, count);
    auto exp_avg = load_average<kPack>(a.exp_avg + first, count);
    auto exp_avg_sq = load_average<kPack>(a.exp_avg_sq + first, count);
    FSDP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float g = to_float(gradient.at[i]) * scale + rates.decay * value.at[i];
      const float m = numbers.beta1 * exp_avg.at[i] + numbers.one_minus_beta1 * g;
      const float v = numbers.beta2 * exp_avg_sq.at[i] + numbers.one_minus_beta2 * g * g;
      const float denominator = ::sqrtf(v) / rates.second_correction + numbers.eps;
      value.at[i] = rates.keep * value.at[i] - rates.step_size * (m / denominator);
      exp_avg.at[i] = m;
      exp_avg_sq.at[i] = v;
    }
    store_pack(a.value + first, value, count);
    store_averages(a, first, exp_avg, exp_avg_sq, count);
    if (a.copy == nullptr) return;
    table.copies_are_half ? store_rounded<c10::Half>(a.copy, first, value, count)
                          : store_rounded<c10::BFloat16>(a.copy, first, value, count);
  }
};

/// Whether `pointer` has the alignment of a pack of the elements that fit 16 bytes in fp32.
template <typename T>
bool fits_floats_pack(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T, kPackOf<float>>) == 0;
}

/// Parts whose memory is aligned for packs, and all others.
template <typename Gradient, typename Elements, typename Launch>
void step_parts(const Launch& launch, const AdamStep& step, const std::vector<Elements>& parts) {
  const auto update = [&](auto shape, bool packs_fit) {
    using Shape = decltype(shape);
    AdamTableOf<Elements> table{.numbers = step.numbers,
                                .gradient_scale = step.gradient_scale,
                                .copies_are_half = step.copies_are_half};
    const auto run = [&] {
      if (table.count > 0)
        launch.template run<AdamKernel<Gradient, Shape, Elements>>(Grid{table.blocks}, table);
      table.count = table.blocks = 0;
    };
    for (const Elements& a : parts) {
      const bool fit = fit_packs<float>(0, a.value) && fit_packs<Gradient>(0, a.gradient) &&
                       fits_floats_pack(a.exp_avg) && fits_floats_pack(a.exp_avg_sq) &&
                       fits_floats_pack(static_cast<const uint16_t*>(a.copy));
      if (fit != packs_fit || a.n == 0) continue;
      const int64_t blocks = Shape::grid(a.n).x;
      if (table.count == table.kParts || table.blocks + blocks > table.kBlocks) run();
      table.parts[table.count] = a;
      table.first_block[table.count++] = table.blocks;
      table.blocks += static_cast<int32_t>(blocks);
    }
    run();
  };
  update(ElementShape<kPackOf<float>>(), true);
  update(ElementShape<1>(), false);
}

template <typename Gradient, typename Launch>
void adam(const Launch& launch, const AdamStep& step) {
  step_parts<Gradient>(launch, step, step.parts);
  step_parts<Gradient>(launch, step, step.rounded_parts);
}

struct OutcomeKernel {
  using Arguments = OutcomeDecision;
  using Shared = Nothing;
  static constexpr int kThreads = kWarp;

  FSDP_DEVICE static void run(const Arguments& a, Shared&) {
    if (thread() == 0) a.rule.decide(a.sums[0], a.sums[1], *a.local_loss, *a.outcome);
  }
};

template <typename Launch>
void decide_outcome(const Launch& launch, const OutcomeDecision& a) {
  launch.template run<OutcomeKernel>(Grid{1}, a);
}

}  // namespace fsdp::kernels::cuda
