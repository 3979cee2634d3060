#include "nn/linear.h"

#include <algorithm>

#include "kernels/float8.h"
#include "nn/parameter.h"

namespace fsdp::nn {

Linear::Linear(int64_t in_features, int64_t out_features, const Compute& compute, bool biased)
    : compute_(compute) {
  weight_ = register_parameter("weight", empty_parameter({out_features, in_features}));
  if (biased) bias_ = register_parameter("bias", empty_parameter({out_features}));
}

at::Tensor Linear::forward(const at::Tensor& x) const {
  return with_bias(multiplies_float8(x) ? kernels::float8_linears(x, {weight_}, compute_.matmul)[0]
                                        : kernels::linear(x, weight_, compute_.matmul));
}

bool Linear::multiplies_float8(const at::Tensor& x) const {
  return float8_ && kernels::can_multiply_float8(x, weight_);
}

at::Tensor Linear::with_bias(const at::Tensor& product) const {
  return bias_.defined() ? product + bias_ : product;
}

std::vector<at::Tensor> forward_all(const at::Tensor& x, std::initializer_list<const Linear*> layers) {
  const auto float8 = std::count_if(layers.begin(), layers.end(),
                                    [&](const Linear* layer) { return layer->multiplies_float8(x); });
  const bool alike = float8 == 0 || float8 == std::ssize(layers);
  std::vector<at::Tensor> weights, results;
  for (const Linear* layer : layers) {
    alike ? weights.push_back(layer->weight_) : results.push_back(layer->forward(x));
  }
  if (!alike) return results;
  const kernels::Matmul matmul = (*layers.begin())->compute_.matmul;
  results = float8 > 0 ? kernels::float8_linears(x, weights, matmul) : kernels::linears(x, weights, matmul);
  for (size_t i = 0; i < results.size(); ++i) results[i] = layers.begin()[i]->with_bias(results[i]);
  return results;
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
  const at::Tensor rows = x.reshape({-1, weight_.size(0)});
  const bool float8 = float8_ && kernels::can_multiply_float8(rows, weight_);
  return (float8 ? kernels::float8_transposed_linear(rows, weight_, bias, compute_.matmul)
                 : kernels::transposed_linear(rows, weight_, bias, compute_.matmul))
      .view(shape);
}

}  // namespace fsdp::nn
