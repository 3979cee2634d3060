#include "model/kernels/adam.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <map>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
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

void step_on_cpu(Element gradient, bool to_half, const AdamElements& all, const AdamNumbers& numbers) {
  constexpr int64_t kRun = 1 << 10;  // a multiple of every vector's length
  const auto size = static_cast<int64_t>(gradient == Element::kFloat ? sizeof(float) : sizeof(uint16_t));
  util::parallel_for(0, (all.n + kRun - 1) / kRun, kGrain / kRun, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kRun;
    AdamElements some = all;
    some.value += begin;
    some.gradient = static_cast<const char*>(all.gradient) + begin * size;
    some.exp_avg += begin;
    some.exp_avg_sq += begin;
    some.n = std::min(last * kRun, all.n) - begin;
    cpu::loops(gradient).adam(some, numbers);
    if (all.copy != nullptr) round_run(some.value, static_cast<uint16_t*>(all.copy) + begin, some.n, to_half);
  });
}

}  // namespace

void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale) {
  if (parts.empty()) return;
  const at::Device device = parts.front().value.device();
  FSDP_CHECK(!gradient_scale.defined() || (device.is_cuda() && gradient_scale.device() == device &&
                                           gradient_scale.scalar_type() == at::kDouble));
  std::map<std::pair<Element, bool>, cuda::AdamStep> steps;  // by the type of gradients, and of copies
  for (const auto& [value, gradient, exp_avg, exp_avg_sq, copy, rates] : parts) {
    FSDP_CHECK(value.scalar_type() == at::kFloat && can_fuse(value) && can_fuse(gradient));
    for (const at::Tensor* x : {&value, &gradient, &exp_avg, &exp_avg_sq, &copy}) {
      if (x == &copy && !copy.defined()) continue;
      FSDP_CHECK(x->is_contiguous() && x->numel() == value.numel() && x->device() == device, x->sizes());
    }
    const AdamElements elements{.value = value.data_ptr<float>(),
                                .gradient = gradient.const_data_ptr(),
                                .exp_avg = exp_avg.data_ptr<float>(),
                                .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                                .n = value.numel(),
                                .rates = rates,
                                .copy = data_or_null(copy)};
    const bool to_half = copy.defined() && copy.scalar_type() == at::kHalf;
    FSDP_CHECK(!copy.defined() || element_of(copy) != Element::kFloat, copy.scalar_type());
    if (device.is_cpu()) {
      step_on_cpu(element_of(gradient), to_half, elements, numbers);
    } else {
      steps[{element_of(gradient), to_half}].parts.push_back(elements);
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
