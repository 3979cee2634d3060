#include "nn/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

#include "kernels/fused.h"
#include "kernels/meta.h"
#include "nn/parameter.h"

namespace fsdp::nn {

RmsNorm::RmsNorm(int64_t size, double epsilon, const Compute& compute)
    : epsilon_(epsilon), compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({size}));
}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  const at::Tensor input = x.to(weight_.scalar_type());
  if (compute_.fused && kernels::can_fuse(input)) {
    return kernels::rms_norm(input, weight_, epsilon_).to(x.scalar_type());
  }
  return at::rms_norm(input, weight_.sizes(), weight_, epsilon_).to(x.scalar_type());
}

std::pair<at::Tensor, at::Tensor> RmsNorm::forward_with(const at::Tensor& residual,
                                                        const at::Tensor& x) const {
  const at::ScalarType type = weight_.scalar_type();
  if (compute_.fused && kernels::can_fuse(x) && x.scalar_type() == type && residual.scalar_type() == type) {
    return kernels::add_rms_norm(residual, x, weight_, epsilon_);
  }
  at::Tensor sum = residual + x;
  return {sum, forward(sum)};
}

LayerNorm::LayerNorm(int64_t size, double epsilon, const Compute& compute)
    : epsilon_(epsilon), compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({size}));
  bias_ = register_parameter("bias", empty_parameter({size}));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  const at::Tensor input = x.to(weight_.scalar_type());
  if (compute_.fused && kernels::can_fuse(input)) {
    return kernels::layer_norm(input, weight_, bias_, epsilon_).to(x.scalar_type());
  }
  // libtorch's CPU kernel sums the gradients of weight and bias in their own type, its CUDA kernel in fp32.
  at::ScalarType type = weight_.scalar_type();
  if (kernels::is_for_cpu(x) && at::isReducedFloatingType(type)) type = at::kFloat;
  at::Tensor normed = at::layer_norm(x.to(type), weight_.sizes(), weight_.to(type), bias_.to(type), epsilon_);
  return normed.to(x.scalar_type());
}

std::pair<at::Tensor, at::Tensor> LayerNorm::forward_with(const at::Tensor& residual,
                                                          const at::Tensor& x) const {
  const at::ScalarType type = weight_.scalar_type();
  if (compute_.fused && kernels::can_fuse(x) && x.scalar_type() == type && residual.scalar_type() == type) {
    return kernels::add_layer_norm(residual, x, weight_, bias_, epsilon_);
  }
  at::Tensor sum = residual + x;
  return {sum, forward(sum)};
}

}  // namespace fsdp::nn
