#include "kernels/adam.h"

#include <c10/core/DeviceGuard.h>

#include "kernels/cuda/kernels.h"
#include "kernels/fused.h"
#include "kernels/row_kernels.h"
#include "util/error.h"

namespace fsdp::kernels {

bool can_step_adam(const at::Tensor& value) {
  return value.is_cuda() && value.scalar_type() == at::kFloat && can_fuse(value);
}

void step_adam(const AdamTensors& tensors, const AdamNumbers& numbers) {
  const auto& [value, gradient, exp_avg, exp_avg_sq, scale] = tensors;
  FSDP_CHECK(can_step_adam(value) && can_fuse(gradient));
  for (const at::Tensor* x : {&value, &gradient, &exp_avg, &exp_avg_sq}) {
    FSDP_CHECK(x->is_contiguous() && x->numel() == value.numel() && x->device() == value.device(),
               x->sizes());
  }
  FSDP_CHECK(!scale.defined() || (scale.device() == value.device() && scale.scalar_type() == at::kDouble));
  const c10::DeviceGuard guard(value.device());
  cuda::adam(element_of(gradient),
             {.value = value.data_ptr<float>(),
              .gradient = gradient.const_data_ptr(),
              .exp_avg = exp_avg.data_ptr<float>(),
              .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
              .n = value.numel(),
              .numbers = numbers,
              .gradient_scale = scale.defined() ? scale.const_data_ptr<double>() : nullptr});
}

}  // namespace fsdp::kernels
