#pragma once

#include "nn/compute.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Rows of a learned table. Each is a stage, so that large tables can be units of their own.
class Embedding final : public Stage {
 public:
  Embedding(int64_t count, int64_t size, const Compute& compute = {});
  std::string type_name() const override { return "embedding"; }
  const at::Tensor& weight() const { return weight_; }

 protected:
  /// ids: [...] int64 -> [..., size]
  at::Tensor compute(const at::Tensor& ids, const StageContext& context) override;

 private:
  at::Tensor weight_;  // [count, size]
  Compute compute_;
};

/// The language-model head: hidden states to scores of every token of the vocabulary; or, where the context
/// has targets, to the mean loss of these scores.
class Head final : public Stage {
 public:
  Head(int64_t hidden_size, int64_t vocab_size, const Compute& compute = {});
  /// Shares `embedding_weight` [vocab_size, hidden_size] (tied word embeddings).
  explicit Head(const at::Tensor& embedding_weight, const Compute& compute = {});
  std::string type_name() const override { return "head"; }

 protected:
  /// x: [..., hidden_size] -> [..., vocab_size], or [] fp32
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  at::Tensor weight_;  // [vocab_size, hidden_size]
  Compute compute_;
};

}  // namespace fsdp::nn
