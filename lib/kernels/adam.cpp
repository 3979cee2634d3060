#include "kernels/adam.h"

#include <c10/core/DeviceGuard.h>

#include <map>

#include "kernels/cuda/kernels.h"
#include "kernels/fused.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {

bool can_step_adam(const at::Tensor& value) {
  return value.is_cuda() && value.scalar_type() == at::kFloat && can_fuse(value);
}

void step_adam(const std::vector<AdamTensors>& parts, const AdamNumbers& numbers,
               const at::Tensor& gradient_scale) {
  if (parts.empty()) return;
  const at::Device device = parts.front().value.device();
  FSDP_CHECK(!gradient_scale.defined() ||
             (gradient_scale.device() == device && gradient_scale.scalar_type() == at::kDouble));
  std::map<Element, cuda::AdamStep> steps;  // by the type of the gradients
  for (const auto& [value, gradient, exp_avg, exp_avg_sq, rates] : parts) {
    FSDP_CHECK(can_step_adam(value) && can_fuse(gradient));
    for (const at::Tensor* x : {&value, &gradient, &exp_avg, &exp_avg_sq}) {
      FSDP_CHECK(x->is_contiguous() && x->numel() == value.numel() && x->device() == device, x->sizes());
    }
    steps[element_of(gradient)].parts.push_back({.value = value.data_ptr<float>(),
                                                 .gradient = gradient.const_data_ptr(),
                                                 .exp_avg = exp_avg.data_ptr<float>(),
                                                 .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                                                 .n = value.numel(),
                                                 .rates = rates});
  }
  const c10::DeviceGuard guard(device);
  for (auto& [element, step] : steps) {
    step.numbers = numbers;
    if (gradient_scale.defined()) step.gradient_scale = gradient_scale.const_data_ptr<double>();
    cuda::adam(element, step);
  }
}

}  // namespace fsdp::kernels
