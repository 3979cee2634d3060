#pragma once

#include <string>

#include "kernels/attention_memory.h"
#include "plan/activation_parts.h"

namespace fsdp::plan {

/// The blocks of a llama or gpt2 on the tape. Forward leaves a block's output and what is saved; backward
/// finds the gradient of the output and leaves that of the input.
class BlockActivations : protected ActivationParts {
 public:
  BlockActivations(const ActivationShape& shape, MemoryTape& tape, const StageEvents& events)
      : ActivationParts(shape, tape, events),
        feed_forward_(nn::feed_forward_spec(shape.model)),
        of_attention_(linear_layers(nn::attention_layers(shape.model))),
        of_feed_forward_(linear_layers(feed_forward_.layers())) {}

  /// `path` is the block's.
  void forward(const std::string& path);
  /// Of a block that is recomputed: the output only.
  void forward_unrecorded(const std::string& path);
  void backward(const std::string& path);

 private:
  /// The rotation of queries or keys: [N, width] in, [N, width] out.
  void rotary_forward(int64_t width);
  void rotary_backward(int64_t width);
  bool fused_rotary() const { return shape_.fused && shape_.buffer_element == kFloat; }

  kernels::AttentionSizes attention_sizes() const;
  int64_t attention_threads() const;
  int64_t scores_forward() const;
  int64_t scores_backward() const;
  /// Whether query, key and value are sums with biases.
  bool biased() const { return llama() && (model().attention_bias || model().qkv_bias); }
  /// Whether one kernel does what is between the layers of the feed-forward.
  bool fuses_activation() const { return shape_.fused && feed_forward_.has_fused_kernel; }
  bool drops_hidden() const { return model().hidden_dropout > 0; }
  bool drops_scores() const { return model().attention_dropout > 0; }
  /// What attention saves besides query, key and value when it drops weights: these before and after, and
  /// keys and values repeated for each query that shares them.
  int64_t score_weights() const {
    const int64_t weights = wide32(model().num_attention_heads * shape_.tokens);
    return weights + weights * shape_.element / kFloat + 2 * (wide(query_width()) - wide(key_width()));
  }
  int64_t log_sums() const { return wide32(model().num_attention_heads); }

  void choose_layers(const std::string& path);
  /// In passing, of those of the layers that multiply in 8 bits; all have one input.
  void float8_forward(const LinearLayers& layers, size_t begin, size_t end);

  // Products, `times` as often as in forward.
  void compute_attention(double times) {
    compute(of_attention_, times,
            4 * static_cast<double>(shape_.tokens) * static_cast<double>(query_width()));
  }
  void compute_feed_forward(double times) { compute(of_feed_forward_, times); }

  // Of the stages inside, backward finds the gradient of the output, which stays for the residual connection.
  void attention_forward();
  void attention_backward();
  void feed_forward_forward();
  void feed_forward_backward();

  /// A stage inside a block that may be recomputed by itself.
  using Pass = void (BlockActivations::*)();
  using Compute = void (BlockActivations::*)(double times);
  void inner_forward(const char* type, const std::string& path, Pass forward, Compute compute);
  void inner_backward(const char* type, const std::string& path, Pass forward, Pass backward);

  std::string attention_path(const std::string& block) const {
    return block + path_of(".self_attn", ".attn");
  }
  static std::string feed_forward_path(const std::string& block) { return block + ".mlp"; }

  nn::FeedForwardSpec feed_forward_;
  LinearLayers of_attention_, of_feed_forward_;  ///< of the block at hand
};

}  // namespace fsdp::plan
