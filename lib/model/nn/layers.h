#pragma once

// The layers of the built-in decoders, all but attention (model/nn/attention.h). Weights are left
// uninitialised: see model/nn/initialize.h.

#include <torch/nn/module.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/families/families.h"
#include "model/families/options.h"
#include "model/kernels/adapted_linear.h"
#include "model/kernels/float8.h"
#include "model/kernels/matmul.h"
#include "model/kernels/quantized.h"
#include "model/nn/stage.h"
#include "model/parallel/collectives.h"

namespace fsdp::nn {

/// Implementation with which layers compute; results differ by rounding alone.
struct Compute {
  bool fused = true;  ///< model/kernels/fused.h, for the tensor types that it supports
  kernels::Matmul matmul = kernels::Matmul::kMkl;
  int64_t logits_bytes = kernels::kDeviceLogitsBytes;

  explicit Compute(const ModelOptions& options)
      : fused(options.fused_kernels),
        matmul(kernels::matmul_by_name(options.matmul.name())),
        logits_bytes(options.logits_mib << 20) {}
  Compute() = default;
};

class EnteredInputs;

/// Form of a layer whose weight is divided among ranks (model/nn/parallelize.h).
struct ParallelForm {
  parallel::Ranks ranks;
  int64_t whole = 0;  ///< size of the weight's dimension that is cut
  /// Layout of the input, if the layer itself makes it whole or, if it sums, takes its part.
  std::optional<parallel::Layout> input = std::nullopt;
  /// Inputs shared by the layers that enter with the same input.
  std::shared_ptr<EnteredInputs> entered = nullptr;
  /// Layout of the result. Nothing: each rank keeps its own part.
  std::optional<parallel::Layout> output = std::nullopt;
  bool sums = false;  ///< the result is the sum of the ranks' results; otherwise these side by side

  at::Tensor enter(const at::Tensor& x) const;
  at::Tensor leave(const at::Tensor& result) const;
};

struct LinearForm {
  bool biased = false;
  bool transposed = false;  ///< weight [in_features, out_features] (GPT-2's "Conv1D"); always biased
};

class LoraAdapter;

/// y = x W^T (+ b): weight [out_features, in_features], bias [out_features].
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in_features, int64_t out_features, const Compute& compute = {}, const LinearForm& form = {});
  /// x: [..., in_features] -> [..., out_features]. `context`: of a stage that trains, for dropout in
  /// adapters. `addend`: what the product may add; null for none.
  at::Tensor forward(const at::Tensor& x, const StageContext* context = nullptr,
                     kernels::Addend* addend = nullptr) const;
  /// forward() without the bias, which the caller's next kernel adds. Requires: transposed, no sum over
  /// ranks.
  at::Tensor forward_without_bias(const at::Tensor& x, const StageContext* context = nullptr) const;
  /// forward() for a caller whose next kernel computes the bias's gradient; undefined where forward() must:
  /// on the CPU, and where the result is not one product of this rank.
  at::Tensor forward_leaving_bias(const at::Tensor& x) const;
  /// Whether the layer is one product of this rank on a GPU, in the type of x.
  bool is_plain_on_gpu(const at::Tensor& x) const;
  bool is_recomputed() const { return recomputed_; }
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }
  bool is_transposed() const { return transposed_; }
  /// See use_float8(). Nothing: the layer multiplies in the type of its weight.
  void set_float8(std::optional<kernels::Float8Scaling> scaling) { float8_ = scaling; }
  /// Declares that whoever makes the layer's input keeps it for backward.
  void set_input_kept() { kept_ = kernels::KeptInput::kItself; }
  /// See quantize_frozen().
  void quantize(kernels::Quantization form);
  /// Form of a weight that is a tensor of bytes; nothing for a weight in floating point.
  const std::optional<kernels::Quantization>& quantization() const { return quantization_; }
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  /// See add_lora() (model/nn/lora.h).
  void set_adapter(std::shared_ptr<const LoraAdapter> adapter) { adapter_ = std::move(adapter); }
  void set_parallel(ParallelForm form) { parallel_ = std::move(form); }
  const std::optional<ParallelForm>& parallel() const { return parallel_; }
  /// Sets whether backward computes the layer's products again instead of keeping them.
  void set_recomputed(bool recomputed) { recomputed_ = recomputed; }

 private:
  friend std::vector<at::Tensor> forward_all(const at::Tensor&, std::initializer_list<const Linear*>,
                                             const StageContext*);
  friend at::Tensor forward_joined(const at::Tensor&, std::initializer_list<const Linear*>,
                                   const StageContext*);
  bool multiplies_float8(const at::Tensor& x) const;
  kernels::Float8Way float8_way() const {
    return {.scaling = *float8_, .kept = kept_, .matmul = compute_.matmul};
  }
  /// Whether the layer itself communicates.
  bool redistributes() const { return parallel_ && (parallel_->input || parallel_->output); }
  /// The product alone, without bias and adapter.
  at::Tensor product(const at::Tensor& x) const;
  /// Term that the adapter adds to the product `base`.
  at::Tensor delta(const at::Tensor& x, const at::Tensor& base, const StageContext* context) const;
  at::Tensor adapted(const at::Tensor& x, const at::Tensor& base, const StageContext* context) const;
  /// The product with the adapter's term.
  at::Tensor adapted_product(const at::Tensor& x, const StageContext* context) const;
  /// The adapter that takes part in a forward pass; null: none.
  const LoraAdapter* adapter_in(const StageContext* context) const {
    return context != nullptr && context->without_adapters ? nullptr : adapter_.get();
  }
  /// Whether kernels::adapted_linears() computes product and adapter at once.
  bool adapts_at_once(const at::Tensor& x, const StageContext* context) const;
  kernels::AdaptedForm adapted_form() const;
  kernels::AdaptedWeight adapted_weight() const;
  at::Tensor with_bias(const at::Tensor& product) const;
  at::Tensor transposed_product(const at::Tensor& x, const std::optional<at::Tensor>& bias) const;

  at::Tensor weight_, bias_;  ///< bias_: undefined if there is none
  Compute compute_;
  int64_t in_features_, out_features_;
  bool transposed_, recomputed_ = false;
  std::optional<kernels::Float8Scaling> float8_;
  kernels::KeptInput kept_ = kernels::KeptInput::kRounded;  ///< of products in 8 bits
  std::optional<kernels::Quantization> quantization_;
  std::shared_ptr<const LoraAdapter> adapter_;  ///< null: none
  std::optional<ParallelForm> parallel_;
};

/// Output of each layer for x. Requires: none is transposed.
std::vector<at::Tensor> forward_all(const at::Tensor& x, std::initializer_list<const Linear*> layers,
                                    const StageContext* context = nullptr);

/// The outputs of all layers side by side, [..., sum of out_features], by one product; undefined where that
/// is of no use or not possible: on the CPU, with biases, if only some multiply in 8 bits, or if the weights
/// do not lie one after another (model/kernels/joined_linear.h).
at::Tensor forward_joined(const at::Tensor& x, std::initializer_list<const Linear*> layers,
                          const StageContext* context = nullptr);

/// Names of linear layers, in the order of the model.
struct Float8Layers {
  std::vector<std::string> chosen;
  std::vector<std::string> unfit;     ///< a size is no multiple of 16
  std::vector<std::string> excluded;  ///< names that a pattern excludes
  bool of_parts = false;              ///< sizes are those of the parts that a rank has of some layers
};

/// Makes the linear layers of the blocks multiply in 8-bit floating point (model/kernels/float8.h), except
/// those whose weight's name matches a pattern of `exclude` (util/name_patterns.h) and those whose sizes do
/// not fit. A chosen layer still multiplies in bf16 when it has to: for parameters or inputs of other types,
/// and when the number of rows (tokens of the batch) is no multiple of 16, as in generation.
Float8Layers use_float8(torch::nn::Module& model, const std::vector<std::string>& exclude,
                        kernels::Float8Scaling scaling = kernels::Float8Scaling::kTensor);

/// Makes the weights of all linear layers bytes (model/kernels/quantized.h), which are never trained. All
/// must be frozen and on meta, and whoever gives them values quantizes [out_features, in_features], for
/// transposed layers too. Embeddings and the head keep their types.
void quantize_frozen(torch::nn::Module& model, kernels::Quantization form);

/// A norm over the last dimension. Sums, also for gradients, are in fp32 for bfloat16 and float16. If the
/// weight's type is not x's (kept in fp32 beside a model in low precision), the whole norm computes in the
/// weight's type; the result always has x's type.
class Norm : public torch::nn::Module {
 public:
  /// x: [..., size] -> [..., size]
  at::Tensor forward(const at::Tensor& x) const;
  /// Returns {x + residual, the norm of that sum}.
  std::pair<at::Tensor, at::Tensor> forward_with(const at::Tensor& residual, const at::Tensor& x) const;
  /// Returns {x, forward(x)}. The first is for other uses of x: on CUDA devices backward of the norm adds
  /// their gradient. On a CPU the other rounding would change results.
  std::pair<at::Tensor, at::Tensor> forward_beside(const at::Tensor& x) const;
  /// Sets whether backward computes the norm again instead of keeping it. On the CPU it always does.
  void set_recomputed(bool recomputed) { recomputed_ = recomputed; }

 protected:
  Norm(NormKind kind, int64_t size, double epsilon, const Compute& compute);

 private:
  /// Factors of the norm.
  at::Tensor factors() const;

  NormKind kind_;
  at::Tensor weight_, bias_;  ///< bias_: of NormKind::kLayer only
  double epsilon_;
  Compute compute_;
  bool recomputed_ = false;
};

/// Root mean square normalisation (Zhang, Sennrich: Root Mean Square Layer Normalization, 2019, section 4).
class RmsNorm final : public Norm {
 public:
  RmsNorm(int64_t size, double epsilon, const Compute& compute = {}, NormKind kind = NormKind::kRms)
      : Norm(kind, size, epsilon, compute) {}
};

/// Layer normalisation with weight and bias (Ba, Kiros, Hinton: Layer Normalization, 2016, section 3).
class LayerNorm final : public Norm {
 public:
  LayerNorm(int64_t size, double epsilon, const Compute& compute = {})
      : Norm(NormKind::kLayer, size, epsilon, compute) {}
};

/// Makes a norm of the family's kind.
std::shared_ptr<Norm> make_norm(const ModelOptions& options, int64_t size);

/// Place at which a decoder drops values.
enum class DropoutPlace { kEmbedding, kAttentionScores, kAttentionOutput, kFeedForwardOutput };

/// Dropout of x [B, T, ...], whose row b belongs to the context's row b. `pieces`: positions of x in each
/// row, if x is a part. Returns x itself unless the context has a DropoutChoice.
at::Tensor dropout(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context,
                   const kernels::RowPieces& pieces = {});
/// Positions that the values of the context's tokens have in whole rows. x: [B, T, D]
kernels::RowPieces values_of_tokens(const at::Tensor& x, const StageContext& context);
/// Dropout at a `site` of the model, whose number differs from those of other sites.
at::Tensor dropout_at(const at::Tensor& x, double p, uint64_t site, const StageContext& context,
                      const kernels::RowPieces& pieces);

/// A learned table, looked up by row. A stage, so that a large table can be an FSDP unit.
class Embedding final : public Stage {
 public:
  Embedding(int64_t count, int64_t size, const Compute& compute = {});
  std::string type_name() const override { return "embedding"; }
  const at::Tensor& weight() const { return weight_; }
  void set_parallel(ParallelForm form) { parallel_ = std::move(form); }
  const std::optional<ParallelForm>& parallel() const { return parallel_; }

 protected:
  /// ids: [...] int64 -> [..., size]
  at::Tensor compute(const at::Tensor& ids, const StageContext& context) override;

 private:
  at::Tensor weight_;  ///< [count, size]
  Compute compute_;
  std::optional<ParallelForm> parallel_;
};

/// The language-model head: hidden states to the scores of all tokens of the vocabulary or, if the context
/// has targets, to the mean loss of these scores.
class Head final : public Stage {
 public:
  Head(int64_t hidden_size, int64_t vocab_size, const Compute& compute = {});
  /// Shares `embedding_weight` [vocab_size, hidden_size] (tied word embeddings).
  explicit Head(const at::Tensor& embedding_weight, const Compute& compute = {});
  std::string type_name() const override { return "head"; }
  const at::Tensor& weight() const { return weight_; }
  void set_parallel(ParallelForm form) { parallel_ = std::move(form); }
  /// Cap of logits l, which become cap tanh(l / cap); 0: none.
  void set_cap(double cap) { cap_ = cap; }

 protected:
  /// x: [..., hidden_size] -> [..., vocab_size], or [] fp32
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override;

 private:
  /// The losses of a lesson, or a teacher's likeliest tokens.
  at::Tensor compared(const at::Tensor& x, const at::Tensor& weight, const StageContext& context) const;

  at::Tensor weight_;  ///< [vocab_size, hidden_size]
  Compute compute_;
  double cap_ = 0;
  std::optional<ParallelForm> parallel_;
};

/// The position-wise feed-forward of a block, [B, T, D] -> [B, T, D].
///   gated:  down(hidden_act(gate(x)) * up(x)) (Shazeer: GLU Variants, 2020); gate and up may be one weight
///   else:   down(hidden_act(up(x))); in GPT-2, always with GELU's approximation by tanh
class FeedForward final : public Stage {
 public:
  /// inner: width inside the feed-forward
  FeedForward(const ModelOptions& options, int64_t inner, std::string type_name = "feed_forward");
  std::string type_name() const override { return type_name_; }
  std::vector<std::string> recomputable() const override { return {kUp, kActivation}; }
  void recompute(const std::vector<std::string>& operations) override;

  /// forward() of a stage without hooks, whose last product may add the addend.
  at::Tensor forward_adding(const at::Tensor& x, const StageContext& context, kernels::Addend& addend) const {
    return run(x, context, &addend);
  }

  static constexpr const char* kUp = "up";  ///< products of gate and up
  static constexpr const char* kActivation = "activation";

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
    return run(x, context, nullptr);
  }

 private:
  at::Tensor run(const at::Tensor& x, const StageContext& context, kernels::Addend* addend) const;
  at::Tensor activated(const at::Tensor& x) const;

  std::string type_name_;
  Compute compute_;
  Activation activation_;
  bool recomputes_activation_ = false;
  bool joined_;                               ///< up_ gives gate and up side by side
  std::shared_ptr<Linear> gate_, up_, down_;  ///< gate_: null without a gate of its own
};

}  // namespace fsdp::nn
