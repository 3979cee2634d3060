#include "nn/linear.h"

#include "nn/parameter.h"

namespace fsdp::nn {

Linear::Linear(int64_t in_features, int64_t out_features, const Compute& compute, bool biased)
    : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({out_features, in_features}));
  if (biased) bias_ = register_parameter("bias", empty_parameter({out_features}));
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return with_bias(kernels::linear(x, weight_, compute_.matmul));
}

at::Tensor Linear::with_bias(const at::Tensor& product) const {
  return bias_.defined() ? product + bias_ : product;
}

TransposedLinear::TransposedLinear(int64_t in_features, int64_t out_features, const Compute& compute)
    : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({in_features, out_features}));
  bias_ = register_parameter("bias", empty_parameter({out_features}));
}

at::Tensor TransposedLinear::forward(const at::Tensor& x) const { return forward(x, bias_); }

at::Tensor TransposedLinear::forward_without_bias(const at::Tensor& x) const {
  return forward(x, std::nullopt);
}

at::Tensor TransposedLinear::forward(const at::Tensor& x, const std::optional<at::Tensor>& bias) const {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight_.size(1);
  return kernels::transposed_linear(x.reshape({-1, weight_.size(0)}), weight_, bias, compute_.matmul)
      .view(shape);
}

}  // namespace fsdp::nn
