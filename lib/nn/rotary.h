#pragma once

// Rotary position embedding (Su et al.: RoFormer, 2021, section 3.2.2), in Hugging Face's form: the two
// halves of a head's features are the two coordinates that are rotated, so weights are interchangeable with
// theirs.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace fsdp::nn {

/// Cosines and sines of the angles position * theta^(-2i / head_dim); kept between calls of equal length.
class RotaryTable {
 public:
  RotaryTable(int64_t head_dim, double theta) : head_dim_(head_dim), theta_(theta) {}

  /// (cos, sin), each [length, head_dim] fp32.
  std::pair<at::Tensor, at::Tensor> angles(int64_t length, const at::Device& device);

 private:
  int64_t head_dim_;
  double theta_;
  at::Tensor cos_, sin_;
};

/// x: [B, heads, T, head_dim]; cos, sin: [T, head_dim] -> like x.
at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace fsdp::nn
