#pragma once

// Rotary position embedding (Su et al.: RoFormer, 2021, section 3.2.2), in Hugging Face's form, for which its
// weights are trained: feature i of a head's first half is rotated with feature i of the second half.

#include <torch/nn/module.h>

#include <cstdint>
#include <utility>

#include "model/families/families.h"
#include "model/families/options.h"
#include "model/nn/buffers.h"

namespace fsdp::nn {

/// Cosines and sines of the angles position * theta^(-2i / rotary_width()), kept between calls. With
/// ModelOptions::rope_type "linear" all frequencies are divided by rope_factor; with "llama3" the low ones
/// are, the high ones are not, and those between are mixtures, by their wavelengths' share of
/// rope_original_length. "yarn" does the same by the indices of the frequencies, "longrope" divides each
/// frequency by a number of its own, "dynamic" raises theta; the last two depend on the sequence's length
/// (rope_length() of model/families/rotary_scaling.h). "yarn" and "longrope" multiply cosines and sines by
/// rope_attention_factor().
///
/// They are the buffers "cos" and "sin", each [length, rotary_width()]: fp32 and empty at first, grown for
/// longer sequences. A cast (set_data() on named_buffers()) sets their type from then on. Angles are always
/// computed in fp32: in bfloat16 not even positions above 256 are exact.
class RotaryTable final : public torch::nn::Module, public ComputedBuffers {
 public:
  explicit RotaryTable(const ModelOptions& options);

  /// (cos, sin), each [length, rotary_width()] of the buffers' type, for a sequence of `length` tokens. Later
  /// casts and growth do not change them.
  std::pair<at::Tensor, at::Tensor> angles(int64_t length, const at::Device& device);

  /// (cos, sin) of positions [begin, begin + length) in a sequence of `whole` tokens; does not change the
  /// buffers.
  std::pair<at::Tensor, at::Tensor> angles_from(int64_t begin, int64_t length, int64_t whole,
                                                const at::Device& device) const;

 private:
  void compute(int64_t length, const at::Device& device);
  /// [rotary_width() / 2] radians per position in a sequence of `whole` tokens, fp32.
  at::Tensor frequencies(int64_t whole, const at::Device& device) const;
  at::Tensor yarn_frequencies(const at::Tensor& periods) const;
  /// (cos, sin) of these positions, [length, rotary_width()] fp32.
  std::pair<at::Tensor, at::Tensor> computed(int64_t begin, int64_t length, int64_t whole,
                                             const at::Device& device) const;

  ModelOptions options_;
  double factor_;  ///< factor of cosines and sines
  at::Tensor cos_, sin_;
  int64_t rope_length_ = 0;             ///< rope_length() of the sequences that the buffers are for
  at::ScalarType cos_type_, sin_type_;  ///< at the last computation; the buffers' types differ after a cast
};

/// Brings neighbouring elements of the first `width` of a head, which rotate together in some families, to
/// the places of its two halves. Scores stay the same if this is done to queries and keys.
/// x: [..., head_dim]
at::Tensor rotary_halves(const at::Tensor& x, int64_t width);

/// Rotates the leading elements of heads, as many as there are angles.
/// x: [B, heads, T, head_dim]; cos, sin: [T, rotary_width()] -> like x. Computes in the wider type of both.
at::Tensor apply_rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace fsdp::nn
