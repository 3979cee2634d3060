#pragma once

// The Llama decoder (Touvron et al.: LLaMA, 2023, section 2.2), with Hugging Face's parameter names:
//   model.embed_tokens, model.layers.N.{input_layernorm, self_attn, post_attention_layernorm, mlp},
//   model.norm, lm_head
// and the buffers model.rotary_emb.{cos, sin}.

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/feed_forward.h"
#include "nn/norm.h"
#include "nn/options.h"
#include "nn/rotary.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// x + attention(norm(x)), then x + feed_forward(norm(x)). x: [B, T, D] -> [B, T, D].
class LlamaBlock final : public Stage {
 public:
  explicit LlamaBlock(const ModelOptions& options);
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  double hidden_dropout_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<GatedFeedForward> mlp_;
};

class Llama final : public Stage {
 public:
  explicit Llama(const ModelOptions& options);
  std::string type_name() const override { return "llama"; }

 protected:
  /// ids: [B, T] int64 -> logits: [B, T, vocab_size]
  at::Tensor compute(const at::Tensor& ids, const StageContext& context) override;

 private:
  double embedding_dropout_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::shared_ptr<StageList> layers_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Head> lm_head_;
  std::shared_ptr<RotaryTable> rotary_emb_;
};

}  // namespace fsdp::nn
