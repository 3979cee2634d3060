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

void step_on_cpu(Element gradient, const AdamElements& all, const AdamNumbers& numbers) {
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
  });
}

}  // namespace

void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale) {
  if (parts.empty()) return;
  const at::Device device = parts.front().value.device();
  FSDP_CHECK(!gradient_scale.defined() || (device.is_cuda() && gradient_scale.device() == device &&
                                           gradient_scale.scalar_type() == at::kDouble));
  std::map<Element, cuda::AdamStep> steps;  // steps by the type of the gradients
  for (const auto& [value, gradient, exp_avg, exp_avg_sq, rates] : parts) {
    FSDP_CHECK(value.scalar_type() == at::kFloat && can_fuse(value) && can_fuse(gradient));
    for (const at::Tensor* x : {&value, &gradient, &exp_avg, &exp_avg_sq}) {
      FSDP_CHECK(x->is_contiguous() && x->numel() == value.numel() && x->device() == device, x->sizes());
    }
    const AdamElements elements{.value = value.data_ptr<float>(),
                                .gradient = gradient.const_data_ptr(),
                                .exp_avg = exp_avg.data_ptr<float>(),
                                .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                                .n = value.numel(),
                                .rates = rates};
    if (device.is_cpu()) {
      step_on_cpu(element_of(gradient), elements, numbers);
    } else {
      steps[element_of(gradient)].parts.push_back(elements);
    }
  }
  const c10::DeviceGuard guard(device);
  for (auto& [element, step] : steps) {
    step.numbers = numbers;
    if (gradient_scale.defined()) step.gradient_scale = gradient_scale.const_data_ptr<double>();
    cuda::adam(element, step);
  }
}

}  // namespace fsdp::kernels
