#pragma once

// Norms over the last dimension. Sums, those of the gradients too, are in fp32 for bfloat16 and float16. A
// weight of another type than x (kept in fp32 beside a model in low precision) makes the whole norm compute
// in the weight's type; the result has x's type in any case.

#include <torch/nn/module.h>

#include <cstdint>
#include <utility>

#include "nn/compute.h"

namespace fsdp::nn {

/// Root mean square normalisation (Zhang, Sennrich: Root Mean Square Layer Normalization, 2019, section 4).
class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(int64_t size, double epsilon, const Compute& compute = {});
  /// x: [..., size] -> [..., size]
  at::Tensor forward(const at::Tensor& x) const;
  /// {x + residual, its norm}
  std::pair<at::Tensor, at::Tensor> forward_with(const at::Tensor& residual, const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  double epsilon_;
  Compute compute_;
};

/// Layer normalisation with weight and bias (Ba, Kiros, Hinton: Layer Normalization, 2016, section 3).
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t size, double epsilon, const Compute& compute = {});
  /// x: [..., size] -> [..., size]
  at::Tensor forward(const at::Tensor& x) const;
  /// {x + residual, its norm}
  std::pair<at::Tensor, at::Tensor> forward_with(const at::Tensor& residual, const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  at::Tensor bias_;
  double epsilon_;
  Compute compute_;
};

}  // namespace fsdp::nn
