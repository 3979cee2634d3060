#pragma once

// What the parts of a model's walk have in common: sizes of their tensors, products with weights, norms.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/row_parts.h"
#include "plan/activations.h"
#include "plan/linear_layers.h"
#include "plan/memory_tape.h"

namespace fsdp::plan {

inline constexpr int64_t kFloat = 4;  ///< bytes
inline constexpr int64_t kLong = 8;

/// What a part of the walk works on; all of it outlives the part.
class ActivationParts {
 protected:
  ActivationParts(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events)
      : shape_(shape), tape_(tape), events_(events) {}

  // ---- sizes. x is a tensor [N, D] of the compute type

  const nn::ModelOptions& model() const { return shape_.model; }
  bool llama() const { return model().architecture == "llama"; }
  bool low() const { return shape_.element < kFloat; }
  /// Whether norms compute on an fp32 copy of their input, and save that.
  bool norms_copy() const { return low() && !shape_.fused; }
  int64_t count() const { return shape_.count(); }
  int64_t hidden() const { return model().hidden_size; }
  int64_t head_dim() const { return nn::head_width(model()); }
  int64_t query_width() const { return llama() ? nn::query_width(model()) : model().hidden_size; }
  int64_t key_width() const { return llama() ? nn::key_width(model()) : model().hidden_size; }
  /// [N, width] of the compute type, and in fp32.
  int64_t wide(int64_t width) const { return shape_.element * count() * width; }
  int64_t wide32(int64_t width) const { return kFloat * count() * width; }
  int64_t x() const { return wide(hidden()); }
  int64_t x32() const { return wide32(hidden()); }
  /// Reciprocal roots, or means and reciprocal deviations.
  int64_t norm_statistics() const { return wide32(llama() ? 1 : 2); }

  /// What a fused backward has of the gradients of vectors [width], part by part.
  int64_t sums_of_rows(int64_t width, int64_t vectors) const {
    return kernels::RowParts(count(), width).bytes(vectors);
  }

  bool recomputes(const char* type) const {
    const auto& types = shape_.recomputed;
    return std::find(types.begin(), types.end(), type) != types.end();
  }

  std::string path_of(const char* llama_name, const char* gpt2_name) const {
    return llama() ? llama_name : gpt2_name;
  }
  std::string block_path(int64_t layer) const {
    return path_of("model.layers.", "transformer.h.") + std::to_string(layer);
  }

  // ---- parts of stages

  /// The products of layers, `times` as often as in forward, and those of attention, of that many FLOP a token.
  void compute(const LinearLayers& layers, double times, double attention_flops = 0);

  /// The gradient of a weight goes to where gradients are accumulated.
  void accumulate(int64_t elements);

  enum class Into { kNew, kSum, kThere };  ///< the first gradient of an input, the second, the third

  /// y = x W. The gradient of y goes, unless the residual connection has it too; `saved` goes.
  void product_backward(const LinearLayer& layer, bool keep_gradient, int64_t saved, Into into = Into::kNew);

  /// y_i = x W_i. The gradients of all y_i go; `saved` goes.
  void joint_product_backward(const LinearLayers& layers, int64_t saved);

  /// Leaves the result, which the product behind it saves, and what backward needs.
  void norm_forward();
  /// Takes the gradient of the result; leaves that of the input, added to the residual's where there is one.
  /// The saved input goes.
  void norm_backward(bool residual);

  const ActivationShape& shape_;
  MemoryTape& tape_;
  const StageEvents& events_;
};

}  // namespace fsdp::plan
