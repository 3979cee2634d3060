#pragma once

// Causal self-attention, by kernels/attention.h where that is for the tensors, else by libtorch's
// scaled-dot-product attention; with dropout of its weights, which exist then as a tensor [B, heads, T, T].
// Shapes: x: [B, T, D] -> [B, T, D].

#include "nn/linear.h"
#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Llama's attention: rotary positions, num_key_value_heads <= num_attention_heads (grouped-query attention;
/// Ainslie et al.: GQA, 2023, section 2.2), with or without biases. Parameters q_proj, k_proj, v_proj,
/// o_proj.
class LlamaAttention final : public Stage {
 public:
  explicit LlamaAttention(const ModelOptions& options);
  std::string type_name() const override { return "attention"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  /// x: [B, T, heads * head_dim] -> [B, T, heads, head_dim]
  at::Tensor rotated(const at::Tensor& x, int64_t heads, const StageContext& context) const;

  int64_t num_heads_, num_kv_heads_, head_dim_;
  double dropout_;
  Compute compute_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
};

/// GPT-2's attention: one product for query, key and value. Parameters c_attn, c_proj.
class Gpt2Attention final : public Stage {
 public:
  explicit Gpt2Attention(const ModelOptions& options);
  std::string type_name() const override { return "attention"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  int64_t num_heads_;
  double dropout_;
  Compute compute_;
  std::shared_ptr<TransposedLinear> c_attn_, c_proj_;
};

}  // namespace fsdp::nn
