#include "model/kernels/adam.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/block_codes.h"
#include "model/kernels/cpu/loops.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/fused.h"
#include "model/kernels/kernel_table.h"
#include "model/kernels/row_kernels.h"

namespace fsdp::kernels {
namespace {

/// Rounds n values to 16 bits while they are in the cache.
void round_run(const float* values, uint16_t* copy, int64_t n, bool to_half) {
  if (!to_half) return cpu::round_to_bfloat16(values, copy, n);
  std::copy_n(values, n, reinterpret_cast<at::Half*>(copy));
}

constexpr int64_t kRun = 1 << 10;  // a multiple of every vector's length, and of blocks of codes
static_assert(kRun % kCodedBlock == 0);

/// Elements [begin, end) of all.
template <typename Elements>
Elements part_of(const Elements& all, Element gradient, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(gradient == Element::kFloat ? sizeof(float) : sizeof(uint16_t));
  Elements some = all;
  some.value += begin;
  some.gradient = static_cast<const char*>(all.gradient) + begin * size;
  some.exp_avg += begin;
  some.exp_avg_sq += begin;
  some.n = end - begin;
  if (all.copy != nullptr) some.copy = static_cast<uint16_t*>(all.copy) + begin;
  return some;
}

void step_run(Element gradient, const AdamElements& some, const AdamNumbers& numbers) {
  cpu::loops(gradient).adam(some, numbers);
}

/// Steps runs of ascending indices with the same upper half.
void step_run(Element gradient, const RoundedAdamElements& some, const AdamNumbers& numbers) {
  constexpr int64_t kLowWords = int64_t{1} << 32;
  const RoundedPlaces& at = some.places;
  for (int64_t begin = 0; begin < some.n;) {
    const int64_t in_part = at.first + begin, row = at.gap == 0 ? 0 : in_part / at.length;
    const int64_t index = at.origin + in_part + row * at.gap;
    int64_t count = std::min(some.n - begin, kLowWords - index % kLowWords);
    if (at.gap != 0) count = std::min(count, (row + 1) * at.length - in_part);
    const auto first_of = [](uint64_t key) { return static_cast<uint32_t>(key); };
    const auto second_of = [high = static_cast<uint32_t>(index / kLowWords)](uint64_t key) {
      return static_cast<uint32_t>(key >> 32) ^ (high * kOfHighWord);
    };
    cpu::loops(gradient).rounded_adam({.elements = part_of(some, gradient, begin, begin + count),
                                       .index = static_cast<uint32_t>(index % kLowWords),
                                       .exp_avg_keys = {first_of(some.keys[0]), second_of(some.keys[0])},
                                       .exp_avg_sq_keys = {first_of(some.keys[1]), second_of(some.keys[1])}},
                                      numbers);
    begin += count;
  }
}

/// Steps block by block, in fp32 in the cache. Requires: `some` begins with a block.
void step_run(Element gradient, const CodedAdamElements& some, const AdamNumbers& numbers) {
  float exp_avg[kCodedBlock], exp_avg_sq[kCodedBlock];
  for (int64_t begin = 0; begin < some.n; begin += kCodedBlock) {
    const CodedAdamElements block = part_of(some, gradient, begin, std::min(begin + kCodedBlock, some.n));
    float& m_scale = some.exp_avg_scales[begin / kCodedBlock];
    float& v_scale = some.exp_avg_sq_scales[begin / kCodedBlock];
    cpu::decode_run(true, block.exp_avg, m_scale, exp_avg, block.n);
    cpu::decode_run(false, block.exp_avg_sq, v_scale, exp_avg_sq, block.n);
    cpu::loops(gradient).adam({block.value, block.gradient, exp_avg, exp_avg_sq, block.n, block.rates},
                              numbers);
    m_scale = cpu::encode_run(true, exp_avg, block.exp_avg, block.n);
    v_scale = cpu::encode_run(false, exp_avg_sq, block.exp_avg_sq, block.n);
  }
}

template <typename Elements>
void step_on_cpu(Element gradient, bool to_half, const Elements& all, const AdamNumbers& numbers) {
  util::parallel_for(0, (all.n + kRun - 1) / kRun, kGrain / kRun, [&](int64_t first, int64_t last) {
    Elements some = part_of(all, gradient, first * kRun, std::min(last * kRun, all.n));
    if constexpr (std::is_same_v<Elements, RoundedAdamElements>) some.places.first += first * kRun;
    if constexpr (std::is_same_v<Elements, CodedAdamElements>) {
      some.exp_avg_scales += first * kRun / kCodedBlock;
      some.exp_avg_sq_scales += first * kRun / kCodedBlock;
    }
    step_run(gradient, some, numbers);
    if (some.copy != nullptr) round_run(some.value, static_cast<uint16_t*>(some.copy), some.n, to_half);
  });
}

template <typename Average>
AdamElementsOf<Average> elements_of(const AdamTensors& tensors) {
  return {.value = tensors.value.data_ptr<float>(),
          .gradient = tensors.gradient.const_data_ptr(),
          .exp_avg = static_cast<Average*>(tensors.exp_avg.data_ptr()),
          .exp_avg_sq = static_cast<Average*>(tensors.exp_avg_sq.data_ptr()),
          .n = tensors.value.numel(),
          .rates = tensors.rates,
          .copy = data_or_null(tensors.copy)};
}

RoundedAdamElements rounded_elements_of(const AdamTensors& tensors) {
  const auto& [m, v] = tensors.rounded;
  const int64_t n = tensors.value.numel();
  FSDP_CHECK(m.first >= 0 && m.first + n <= m.part.numel(), m.first, " + ", n, " of ", m.part.numel());
  return {elements_of<uint16_t>(tensors),
          {.origin = m.part.row_begin * m.columns + m.part.begin,
           .first = m.first,
           .length = m.part.length(),
           .gap = m.part.height() > 1 ? m.columns - m.part.length() : 0},
          {m.key, v.key}};
}

/// Calls use(elements) for the first block, if it is a part of one, and for all others.
template <typename Use>
void for_coded_elements_of(const AdamTensors& tensors, Element gradient, const Use& use) {
  const CodedAdamElements all{elements_of<uint8_t>(tensors), tensors.scales[0].data_ptr<float>(),
                              tensors.scales[1].data_ptr<float>()};
  if (tensors.phase == 0) return use(all);
  const int64_t first = std::min(kCodedBlock - tensors.phase, all.n);
  use(part_of(all, gradient, 0, first));
  CodedAdamElements rest = part_of(all, gradient, first, all.n);
  ++rest.exp_avg_scales;
  ++rest.exp_avg_sq_scales;
  use(rest);
}

void check(const AdamTensors& tensors, const at::Device& device) {
  const auto& [value, gradient, exp_avg, exp_avg_sq, copy, rates, rounded, scales, phase] = tensors;
  FSDP_CHECK(value.scalar_type() == at::kFloat && can_fuse(value) && can_fuse(gradient));
  for (const at::Tensor* x : {&value, &gradient, &exp_avg, &exp_avg_sq, &copy}) {
    if (x == &copy && !copy.defined()) continue;
    FSDP_CHECK(x->is_contiguous() && x->numel() == value.numel() && x->device() == device, x->sizes());
  }
  const at::ScalarType type = exp_avg.scalar_type();
  FSDP_CHECK(
      (type == at::kFloat || type == at::kBFloat16 || type == at::kByte) && exp_avg_sq.scalar_type() == type,
      type);
  for (const at::Tensor& each : scales) {
    FSDP_CHECK(type != at::kByte ||
               (each.scalar_type() == at::kFloat && each.is_contiguous() && each.device() == device &&
                phase >= 0 && phase < kCodedBlock && each.numel() == coded_blocks(phase, value.numel())));
  }
  FSDP_CHECK(!copy.defined() || element_of(copy) != Element::kFloat, copy.scalar_type());
}

}  // namespace

void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale) {
  if (parts.empty()) return;
  const at::Device device = parts.front().value.device();
  FSDP_CHECK(!gradient_scale.defined() || (device.is_cuda() && gradient_scale.device() == device &&
                                           gradient_scale.scalar_type() == at::kDouble));
  std::map<std::pair<Element, bool>, cuda::AdamStep> steps;  // by the type of gradients, and of copies
  for (const AdamTensors& tensors : parts) {
    check(tensors, device);
    const Element gradient = element_of(tensors.gradient);
    const bool to_half = tensors.copy.defined() && tensors.copy.scalar_type() == at::kHalf;
    const auto step = [&](const auto& elements, auto cuda::AdamStep::*parts_of_step) {
      if (device.is_cpu()) return step_on_cpu(gradient, to_half, elements, numbers);
      (steps[{gradient, to_half}].*parts_of_step).push_back(elements);
    };
    switch (tensors.exp_avg.scalar_type()) {
      case at::kFloat:
        step(elements_of<float>(tensors), &cuda::AdamStep::parts);
        break;
      case at::kBFloat16:
        step(rounded_elements_of(tensors), &cuda::AdamStep::rounded_parts);
        break;
      default:
        for_coded_elements_of(tensors, gradient, [&](const CodedAdamElements& elements) {
          step(elements, &cuda::AdamStep::coded_parts);
        });
    }
  }
  const c10::DeviceGuard guard(device);
  for (auto& [types, step] : steps) {
    step.numbers = numbers;
    step.copies_are_half = types.second;
    if (gradient_scale.defined()) step.gradient_scale = gradient_scale.const_data_ptr<double>();
    cuda::adam(types.first, step);
  }
}

}  // namespace fsdp::kernels
