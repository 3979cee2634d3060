#include "nn/rotary.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace fsdp::nn {

RotaryTable::RotaryTable(int64_t head_dim, double theta) : head_dim_(head_dim), theta_(theta) {
  cos_ = register_buffer("cos", at::empty({0, head_dim}, at::kFloat));
  sin_ = register_buffer("sin", at::empty({0, head_dim}, at::kFloat));
  cos_type_ = sin_type_ = at::kFloat;
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles(int64_t length, const at::Device& device) {
  // Cast values would keep the rounding of the type that they were computed for.
  bool valid = cos_.scalar_type() == cos_type_ && sin_.scalar_type() == sin_type_ &&
               cos_.device() == device && sin_.device() == device;
  if (!valid || cos_.size(0) < length) compute(length, device);
  return {cos_.narrow(0, 0, length), sin_.narrow(0, 0, length)};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::angles_from(int64_t begin, int64_t length,
                                                           const at::Device& device) const {
  const at::Tensor angles = computed(begin, length, device);
  return {angles.cos().to(cos_.scalar_type()), angles.sin().to(sin_.scalar_type())};
}

at::Tensor RotaryTable::computed(int64_t begin, int64_t length, const at::Device& device) const {
  at::NoGradGuard no_grad;
  auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  at::Tensor exponents = at::arange(0, head_dim_, 2, options) / static_cast<double>(head_dim_);
  at::Tensor frequencies = at::pow(theta_, exponents).reciprocal();
  at::Tensor half = at::outer(at::arange(begin, begin + length, options), frequencies);
  return at::cat({half, half}, -1);
}

void RotaryTable::compute(int64_t length, const at::Device& device) {
  at::NoGradGuard no_grad;
  const at::Tensor angles = computed(0, length, device);
  cos_type_ = cos_.scalar_type();
  sin_type_ = sin_.scalar_type();
  // set_data keeps the identity of the buffers; what was handed out views the former memory.
  cos_.set_data(angles.cos().to(cos_type_));
  sin_.set_data(angles.sin().to(sin_type_));
}

at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  int64_t half = x.size(-1) / 2;
  at::Tensor rotated = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return (x * cos + rotated * sin).to(x.scalar_type());
}

}  // namespace fsdp::nn
