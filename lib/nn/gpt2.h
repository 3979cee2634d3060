#pragma once

// The GPT-2 decoder (Radford et al.: Language Models are Unsupervised Multitask Learners, 2019, section 2.3),
// with Hugging Face's parameter names:
//   transformer.{wte, wpe}, transformer.h.N.{ln_1, attn, ln_2, mlp}, transformer.ln_f, lm_head

#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/feed_forward.h"
#include "nn/norm.h"
#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// x + attention(norm(x)), then x + feed_forward(norm(x)). x: [B, T, D] -> [B, T, D].
class Gpt2Block final : public Stage {
 public:
  explicit Gpt2Block(const ModelOptions& options);
  std::string type_name() const override { return "block"; }

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  double hidden_dropout_;
  std::shared_ptr<LayerNorm> ln_1_, ln_2_;
  std::shared_ptr<Gpt2Attention> attn_;
  std::shared_ptr<GeluFeedForward> mlp_;
};

class Gpt2 final : public Stage {
 public:
  explicit Gpt2(const ModelOptions& options);
  std::string type_name() const override { return "gpt2"; }

 protected:
  /// ids: [B, T] int64 -> logits: [B, T, vocab_size]; T <= max_position_embeddings, else Error(kUsage).
  at::Tensor compute(const at::Tensor& ids, const StageContext& context) override;

 private:
  int64_t max_positions_;
  double embedding_dropout_;
  std::shared_ptr<Embedding> wte_, wpe_;
  std::shared_ptr<StageList> h_;
  std::shared_ptr<LayerNorm> ln_f_;
  std::shared_ptr<Head> lm_head_;
};

}  // namespace fsdp::nn
