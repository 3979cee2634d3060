#include "nn/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

namespace fsdp::nn {

RmsNorm::RmsNorm(int64_t size, double epsilon) : epsilon_(epsilon) {
  weight_ = register_parameter("weight", at::empty({size}));
}

at::Tensor RmsNorm::forward(const at::Tensor& x) const {
  return at::rms_norm(x, weight_.sizes(), weight_, epsilon_);
}

LayerNorm::LayerNorm(int64_t size, double epsilon) : epsilon_(epsilon) {
  weight_ = register_parameter("weight", at::empty({size}));
  bias_ = register_parameter("bias", at::empty({size}));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  return at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_);
}

}  // namespace fsdp::nn
