#pragma once

// Causal self-attention, by kernels/attention.h where that supports the tensors, else by libtorch's
// scaled-dot-product attention or, on GPUs within documents and with a key-value cache, by
// kernels/flash_attention.h. With dropout, the attention weights exist as a tensor [B, heads, T, T].

#include "nn/layers.h"

namespace fsdp::nn {

/// x: [B, T, D] -> [B, T, D].
///   Llama: rotary positions, num_key_value_heads <= num_attention_heads (grouped-query attention; Ainslie et
///          al.: GQA, 2023, section 2.2), with or without biases. Parameters q_proj, k_proj, v_proj, o_proj.
///   GPT-2: one product for query, key and value. Parameters c_attn, c_proj.
class Attention final : public Stage {
 public:
  explicit Attention(const ModelOptions& options);
  std::string type_name() const override { return "attention"; }

  /// q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim]
  struct Heads {
    at::Tensor q = {}, k = {}, v = {};
    at::Tensor attended =
        {};             ///< in their place, where one function rotates and attends: [B, T, heads * head_dim]
    int64_t first = 0;  ///< number of q's first head in the model
  };

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  /// Llama's. x: [B, T, D]
  Heads rotated_heads(const at::Tensor& x, const StageContext& context) const;
  /// x: [B, T, heads * head_dim] -> [B, T, heads, head_dim]
  at::Tensor rotated(const at::Tensor& x, const StageContext& context) const;

  int64_t head_dim_;
  double dropout_;
  Compute compute_;
  std::shared_ptr<Linear> q_, k_, v_;  ///< Llama's
  std::shared_ptr<Linear> qkv_;        ///< GPT-2's
  std::shared_ptr<Linear> output_;
};

}  // namespace fsdp::nn
