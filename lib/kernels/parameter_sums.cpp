#include "kernels/parameter_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "kernels/gradient_sink.h"
#include "kernels/meta.h"
#include "util/error.h"

namespace fsdp::kernels {

ParameterSums::ParameterSums(const at::Tensor& x, int64_t vectors)
    : element_(element_of(x)),
      parts_(rows_of(x), x.size(-1), is_for_cpu(x) ? RowParts::kCpu : RowParts::kDevice) {
  const auto options = x.options().dtype(at::kFloat);
  const std::array<int64_t, 3> shape{vectors, parts_.count(), parts_.width()};
  sums_ = is_for_cpu(x) ? at::zeros(shape, options) : at::empty(shape, options);
}

float* ParameterSums::of(int64_t vector) const {
  return sums_.data_ptr<float>() + vector * parts_.count() * parts_.width();
}

void ParameterSums::total_into(int64_t vector, const at::Tensor& to, bool adds) const {
  FSDP_CHECK(to.is_contiguous() && to.numel() == parts_.width() && to.device() == sums_.device(), to.sizes());
  KernelsFor(element_, sums_.device())
      ->total({.sums = of(vector),
               .parts = parts_.count(),
               .width = parts_.width(),
               .to = to.data_ptr(),
               .to_fp32 = to.scalar_type() == at::kFloat,
               .adds = adds});
}

at::Tensor ParameterSums::gradient(int64_t vector, const at::Tensor& parameter) const {
  if (auto place = take_gradient_place(parameter, at::kFloat)) {
    total_into(vector, place->memory, place->adds);
    return {};
  }
  FSDP_CHECK(element_of(parameter) == element_, parameter.scalar_type());
  at::Tensor gradient = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
  total_into(vector, gradient, false);
  return gradient;
}

}  // namespace fsdp::kernels
