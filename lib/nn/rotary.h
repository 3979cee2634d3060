#pragma once

// Rotary position embedding (Su et al.: RoFormer, 2021, section 3.2.2), in Hugging Face's form: the two
// halves of a head's features are the two coordinates that are rotated, so weights are interchangeable with
// theirs.

#include <torch/nn/module.h>

#include <cstdint>
#include <utility>

#include "nn/options.h"

namespace fsdp::nn {

/// Cosines and sines of the angles position * theta^(-2i / head_dim), kept between calls. With
/// ModelOptions::rope_type "linear" all frequencies are divided by rope_factor; with "llama3" the low ones
/// are, the high ones are not, and those between are mixtures, by their wavelengths' share of
/// rope_original_length.
///
/// They are the buffers "cos" and "sin", each [length, head_dim]: fp32 and empty at first, grown when a
/// longer sequence comes. Whoever casts them (set_data() on named_buffers()) decides their type from then on.
/// Angles are computed in fp32 whatever that type is: in bfloat16 not even positions above 256 are exact.
class RotaryTable final : public torch::nn::Module {
 public:
  /// Of a llama.
  explicit RotaryTable(const ModelOptions& options);

  /// (cos, sin), each [length, head_dim] of the buffers' type. Later casts and growth leave them as they are.
  std::pair<at::Tensor, at::Tensor> angles(int64_t length, const at::Device& device);

  /// Those of positions [begin, begin + length), which are not kept, so that inference leaves the table of
  /// training as it is.
  std::pair<at::Tensor, at::Tensor> angles_from(int64_t begin, int64_t length,
                                                const at::Device& device) const;

 private:
  void compute(int64_t length, const at::Device& device);
  /// [head_dim / 2] radians a position, fp32.
  at::Tensor frequencies(const at::Device& device) const;
  /// [length, head_dim] fp32
  at::Tensor computed(int64_t begin, int64_t length, const at::Device& device) const;

  ModelOptions options_;
  at::Tensor cos_, sin_;
  at::ScalarType cos_type_, sin_type_;  ///< what was computed for; the buffers' types differ after a cast
};

/// x: [B, heads, T, head_dim]; cos, sin: [T, head_dim] -> like x. Rotates in the wider of the types of x and
/// the angles: in fp32 with fp32 angles.
at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace fsdp::nn
