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
  static constexpr int kParts = sizeof(Elements) == sizeof(AdamElements)        ? 56
                                : sizeof(Elements) == sizeof(CodedAdamElements) ? 46
                                                                                : 34;
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
static_assert(sizeof(AdamTable) <= 4096 && sizeof(AdamTableOf<RoundedAdamElements>) <= 4096 &&
              sizeof(AdamTableOf<CodedAdamElements>) <= 4096);

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

/// Updates an element in fp32.
FSDP_DEVICE void step_element(const AdamNumbers& numbers, const AdamRates& rates, float scaled_gradient,
                              float& value, float& exp_avg, float& exp_avg_sq) {
  const float g = scaled_gradient + rates.decay * value;
  const float m = numbers.beta1 * exp_avg + numbers.one_minus_beta1 * g;
  const float v = numbers.beta2 * exp_avg_sq + numbers.one_minus_beta2 * g * g;
  const float denominator = ::sqrtf(v) / rates.second_correction + numbers.eps;
  value = rates.keep * value - rates.step_size * (m / denominator);
  exp_avg = m;
  exp_avg_sq = v;
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
      step_element(numbers, rates, to_float(gradient.at[i]) * scale, value.at[i], exp_avg.at[i],
                   exp_avg_sq.at[i]);
    }
    store_pack(a.value + first, value, count);
    store_averages(a, first, exp_avg, exp_avg_sq, count);
    if (a.copy == nullptr) return;
    table.copies_are_half ? store_rounded<c10::Half>(a.copy, first, value, count)
                          : store_rounded<c10::BFloat16>(a.copy, first, value, count);
  }
};

#define FSDP_CODE FSDP_DEVICE
#include "model/kernels/block_code_bits.inc"
#undef FSDP_CODE

/// Calls body(at, count) for the packs of `pack` elements of a lane's share of a block of codes, which has n
/// elements: `at` is the index of the pack's first element, count how many elements are left.
template <int kPack, typename Body>
FSDP_DEVICE void for_packs_of_block(int64_t n, const Body& body) {
  constexpr int kVectors = static_cast<int>(kCodedBlock) / (kWarp * kPack);
  FSDP_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kWarp + lane()) * kPack;
    body(v * kPack, at, n - at);
  }
}

/// Returns the scale of a block of which each lane has these values. Called by all lanes of a warp.
template <int kCount>
FSDP_DEVICE float scale_of_block(const float (&values)[kCount]) {
  int32_t most = 0;
  FSDP_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const int32_t bits = magnitude_bits(values[i]);
    most = bits > most ? bits : most;
  }
  FSDP_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const int32_t other = shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  return scale_of(most);
}

/// Adam with averages in 8 bits: a warp updates a block of codes.
template <typename Gradient, int kPackSize>
struct CodedAdamKernel {
  using Arguments = AdamTableOf<CodedAdamElements>;
  using Shared = Nothing;
  static constexpr int kThreads = 256;
  static constexpr int64_t kOfBlock = kThreads / kWarp * kCodedBlock;  ///< elements of a block of threads

  static Grid grid(int64_t n) { return {(n + kOfBlock - 1) / kOfBlock}; }

  FSDP_DEVICE static void run(const Arguments& table, Shared&) {
    constexpr int kCount = static_cast<int>(kCodedBlock) / kWarp;
    const int part = table.part_of(block());
    const CodedAdamElements& a = table.parts[part];
    const int64_t first = (block() - table.first_block[part]) * kOfBlock + warp() * kCodedBlock,
                  left = a.n - first;
    if (left <= 0) return;  // all lanes of the warp
    const AdamNumbers& numbers = table.numbers;
    const float factor =
        table.gradient_scale != nullptr ? static_cast<float>(*table.gradient_scale) : numbers.gradient_scale;
    if (factor != factor) return;
    float* m_scale = a.exp_avg_scales + first / kCodedBlock;
    float* v_scale = a.exp_avg_sq_scales + first / kCodedBlock;
    const float old_m_scale = *m_scale, old_v_scale = *v_scale;
    float m[kCount] = {}, v[kCount] = {};
    for_packs_of_block<kPackSize>(left, [&](int held, int at, int64_t count) {
      if (count <= 0) return;
      const int64_t from = first + at;
      const auto gradient = load_pack<kPackSize>(static_cast<const Gradient*>(a.gradient) + from, count);
      auto value = load_pack<kPackSize>(a.value + from, count);
      const auto exp_avg = load_pack<kPackSize>(a.exp_avg + from, count),
                 exp_avg_sq = load_pack<kPackSize>(a.exp_avg_sq + from, count);
      FSDP_UNROLL
      for (int i = 0; i < kPackSize; ++i) {
        float& of_m = m[held + i];
        float& of_v = v[held + i];
        of_m = decoded<true>(exp_avg.at[i], old_m_scale);
        of_v = decoded<false>(exp_avg_sq.at[i], old_v_scale);
        step_element(numbers, a.rates, to_float(gradient.at[i]) * factor, value.at[i], of_m, of_v);
        if (i >= count) of_m = of_v = 0;
      }
      store_pack(a.value + from, value, count);
      if (a.copy == nullptr) return;
      table.copies_are_half ? store_rounded<c10::Half>(a.copy, from, value, count)
                            : store_rounded<c10::BFloat16>(a.copy, from, value, count);
    });
    const float new_m_scale = scale_of_block(m), new_v_scale = scale_of_block(v);
    for_packs_of_block<kPackSize>(left, [&](int held, int at, int64_t count) {
      if (count <= 0) return;
      Pack<uint8_t, kPackSize> exp_avg, exp_avg_sq;
      FSDP_UNROLL
      for (int i = 0; i < kPackSize; ++i) {
        exp_avg.at[i] = encoded<true>(m[held + i], new_m_scale);
        exp_avg_sq.at[i] = encoded<false>(v[held + i], new_v_scale);
      }
      store_pack(a.exp_avg + first + at, exp_avg, count);
      store_pack(a.exp_avg_sq + first + at, exp_avg_sq, count);
    });
    if (lane() == 0) {
      *m_scale = new_m_scale;
      *v_scale = new_v_scale;
    }
  }
};

/// Whether `pointer` has the alignment of a pack of the elements that fit 16 bytes in fp32.
template <typename T>
bool fits_floats_pack(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T, kPackOf<float>>) == 0;
}

template <typename Gradient, typename Elements, int kPack>
struct AdamKernelOf {
  using Shape = ElementShape<kPack>;
  using Kernel = AdamKernel<Gradient, Shape, Elements>;
  static Grid grid(int64_t n) { return Shape::grid(n); }
};
template <typename Gradient, int kPack>
struct AdamKernelOf<Gradient, CodedAdamElements, kPack> {
  using Kernel = CodedAdamKernel<Gradient, kPack>;
  static Grid grid(int64_t n) { return Kernel::grid(n); }
};

/// Parts whose memory is aligned for packs, and all others.
template <typename Gradient, typename Elements, typename Launch>
void step_parts(const Launch& launch, const AdamStep& step, const std::vector<Elements>& parts) {
  const auto update = [&](auto pack, bool packs_fit) {
    using KernelOf = AdamKernelOf<Gradient, Elements, decltype(pack)::value>;
    AdamTableOf<Elements> table{.numbers = step.numbers,
                                .gradient_scale = step.gradient_scale,
                                .copies_are_half = step.copies_are_half};
    const auto run = [&] {
      if (table.count > 0) launch.template run<typename KernelOf::Kernel>(Grid{table.blocks}, table);
      table.count = table.blocks = 0;
    };
    for (const Elements& a : parts) {
      const bool fit = fit_packs<float>(0, a.value) && fit_packs<Gradient>(0, a.gradient) &&
                       fits_floats_pack(a.exp_avg) && fits_floats_pack(a.exp_avg_sq) &&
                       fits_floats_pack(static_cast<const uint16_t*>(a.copy));
      if (fit != packs_fit || a.n == 0) continue;
      const int64_t blocks = KernelOf::grid(a.n).x;
      if (table.count == table.kParts || table.blocks + blocks > table.kBlocks) run();
      table.parts[table.count] = a;
      table.first_block[table.count++] = table.blocks;
      table.blocks += static_cast<int32_t>(blocks);
    }
    run();
  };
  update(std::integral_constant<int, kPackOf<float>>(), true);
  update(std::integral_constant<int, 1>(), false);
}

template <typename Gradient, typename Launch>
void adam(const Launch& launch, const AdamStep& step) {
  step_parts<Gradient>(launch, step, step.parts);
  step_parts<Gradient>(launch, step, step.rounded_parts);
  step_parts<Gradient>(launch, step, step.coded_parts);
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
