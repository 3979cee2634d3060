#pragma once

// Matrix products with a learned weight, in the two layouts that Hugging Face's checkpoints use.
// Weights are left uninitialised: see nn/initialize.h.

#include <torch/nn/module.h>

#include <cstdint>
#include <optional>

#include "nn/compute.h"

namespace fsdp::nn {

/// y = x W^T, or x W^T + b: weight [out_features, in_features], bias [out_features] (Llama).
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in_features, int64_t out_features, const Compute& compute = {}, bool biased = false);
  /// x: [..., in_features] -> [..., out_features]
  at::Tensor forward(const at::Tensor& x) const;
  const at::Tensor& weight() const { return weight_; }
  /// `product`: x W^T, for a caller that computes that.
  at::Tensor with_bias(const at::Tensor& product) const;

 private:
  at::Tensor weight_;
  at::Tensor bias_;  ///< undefined: none
  Compute compute_;
};

/// y = x W + b: weight [in_features, out_features], bias [out_features] (GPT-2's "Conv1D").
class TransposedLinear : public torch::nn::Module {
 public:
  TransposedLinear(int64_t in_features, int64_t out_features, const Compute& compute = {});
  /// x: [..., in_features] -> [..., out_features]
  at::Tensor forward(const at::Tensor& x) const;
  /// x W, for a caller whose next kernel adds bias().
  at::Tensor forward_without_bias(const at::Tensor& x) const;
  const at::Tensor& bias() const { return bias_; }

 private:
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& bias) const;

  at::Tensor weight_;
  at::Tensor bias_;
  Compute compute_;
};

}  // namespace fsdp::nn
