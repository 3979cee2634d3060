#pragma once

// Matrix products with a learned weight, in the two layouts that Hugging Face's checkpoints use.
// Weights are left uninitialised: see nn/initialize.h.

#include <torch/nn/module.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "nn/compute.h"

namespace fsdp::nn {

/// y = x W^T, or x W^T + b: weight [out_features, in_features], bias [out_features] (Llama).
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in_features, int64_t out_features, const Compute& compute = {}, bool biased = false);
  /// x: [..., in_features] -> [..., out_features]
  at::Tensor forward(const at::Tensor& x) const;
  const at::Tensor& weight() const { return weight_; }
  /// See nn/float8.h.
  void set_float8(bool float8) { float8_ = float8; }

 private:
  friend std::vector<at::Tensor> forward_all(const at::Tensor&, std::initializer_list<const Linear*>);
  bool multiplies_float8(const at::Tensor& x) const;
  at::Tensor with_bias(const at::Tensor& product) const;

  at::Tensor weight_;
  at::Tensor bias_;  ///< undefined: none
  Compute compute_;
  bool float8_ = false;
};

/// What each of the layers makes of x.
std::vector<at::Tensor> forward_all(const at::Tensor& x, std::initializer_list<const Linear*> layers);

/// y = x W + b: weight [in_features, out_features], bias [out_features] (GPT-2's "Conv1D").
class TransposedLinear : public torch::nn::Module {
 public:
  TransposedLinear(int64_t in_features, int64_t out_features, const Compute& compute = {});
  /// x: [..., in_features] -> [..., out_features]
  at::Tensor forward(const at::Tensor& x) const;
  /// x W, for a caller whose next kernel adds bias().
  at::Tensor forward_without_bias(const at::Tensor& x) const;
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }
  /// See nn/float8.h.
  void set_float8(bool float8) { float8_ = float8; }

 private:
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& bias) const;

  at::Tensor weight_;
  at::Tensor bias_;
  Compute compute_;
  bool float8_ = false;
};

}  // namespace fsdp::nn
