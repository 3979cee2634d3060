#include "nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>

#include "nn/parameter.h"

namespace fsdp::nn {

Linear::Linear(int64_t in_features, int64_t out_features) {
  weight_ = register_parameter("weight", empty_parameter({out_features, in_features}));
}

at::Tensor Linear::forward(const at::Tensor& x) const { return at::linear(x, weight_); }

TransposedLinear::TransposedLinear(int64_t in_features, int64_t out_features) {
  weight_ = register_parameter("weight", empty_parameter({in_features, out_features}));
  bias_ = register_parameter("bias", empty_parameter({out_features}));
}

at::Tensor TransposedLinear::forward(const at::Tensor& x) const {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight_.size(1);
  return at::addmm(bias_, x.reshape({-1, weight_.size(0)}), weight_).view(shape);
}

}  // namespace fsdp::nn
