#include "nn/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

#include "nn/parameter.h"

namespace fsdp::nn {

RmsNorm::RmsNorm(int64_t size, double epsilon) : epsilon_(epsilon) {
  weight_ = register_parameter("weight", empty_parameter({size}));
}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  at::Tensor normed = at::rms_norm(x.to(weight_.scalar_type()), weight_.sizes(), weight_, epsilon_);
  return normed.to(x.scalar_type());
}

LayerNorm::LayerNorm(int64_t size, double epsilon) : epsilon_(epsilon) {
  weight_ = register_parameter("weight", empty_parameter({size}));
  bias_ = register_parameter("bias", empty_parameter({size}));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  // libtorch's CPU kernel sums the gradients of weight and bias in their own type, its CUDA kernel in fp32.
  at::ScalarType type = weight_.scalar_type();
  if (x.is_cpu() && at::isReducedFloatingType(type)) type = at::kFloat;
  at::Tensor normed = at::layer_norm(x.to(type), weight_.sizes(), weight_.to(type), bias_.to(type), epsilon_);
  return normed.to(x.scalar_type());
}

}  // namespace fsdp::nn
