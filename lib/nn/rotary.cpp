#include "nn/rotary.h"

#include <ATen/Functions.h>

namespace fsdp::nn {

std::pair<at::Tensor, at::Tensor> RotaryTable::angles(int64_t length, const at::Device& device) {
  if (!cos_.defined() || cos_.size(0) != length || cos_.device() != device) {
    auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    at::Tensor exponents = at::arange(0, head_dim_, 2, options) / static_cast<double>(head_dim_);
    at::Tensor frequencies = at::pow(theta_, exponents).reciprocal();
    at::Tensor half = at::outer(at::arange(length, options), frequencies);
    at::Tensor angles = at::cat({half, half}, -1);
    cos_ = angles.cos();
    sin_ = angles.sin();
  }
  return {cos_, sin_};
}

at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  int64_t half = x.size(-1) / 2;
  at::Tensor rotated = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return (x * cos + rotated * sin).to(x.scalar_type());
}

}  // namespace fsdp::nn
