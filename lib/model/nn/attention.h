#pragma once

// Causal self-attention, by model/kernels/attention.h where that supports the tensors, else by libtorch's
// scaled-dot-product attention or, on GPUs within documents and with a key-value cache, by
// model/kernels/flash_attention.h. With dropout, the attention weights exist as a tensor [B, heads, T, T].

#include <optional>

#include "model/kernels/attention.h"
#include "model/nn/layers.h"

namespace fsdp::nn {

/// Attention of one layer, counted from 0: x [B, T, D] -> [B, T, D]. The family (model/families/family.h)
/// decides on rotary positions, biases, norms of queries and keys, a window, and one or three products for
/// queries, keys and values. num_key_value_heads <= num_attention_heads (grouped-query attention; Ainslie et
/// al.: GQA, 2023, section 2.2).
class Attention final : public Stage {
 public:
  explicit Attention(const ModelOptions& options, int64_t layer = 0);
  std::string type_name() const override { return "attention"; }
  std::vector<std::string> recomputable() const override { return {kQkv, kAttention, kOutput}; }
  void recompute(const std::vector<std::string>& operations) override;

  static constexpr const char* kQkv = "qkv";                  ///< queries, keys and values
  static constexpr const char* kAttention = "attention";      ///< attention of the queries, keys and values
  static constexpr const char* kOutput = "attention_output";  ///< the output projection

  /// forward() of a stage without hooks, whose last product may add the addend.
  at::Tensor forward_adding(const at::Tensor& x, const StageContext& context, kernels::Addend& addend) const {
    return run(x, context, &addend);
  }

  /// q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim]
  struct Heads {
    at::Tensor q = {}, k = {}, v = {};
    at::Tensor attended =
        {};  ///< result instead of heads, if one function rotates and attends: [B, T, heads * head_dim]
    int64_t first = 0;  ///< number of q's first head in the model
  };

 protected:
  at::Tensor compute(const at::Tensor& x, const StageContext& context) override {
    return run(x, context, nullptr);
  }

 private:
  /// x: [B, T, D]
  at::Tensor run(const at::Tensor& x, const StageContext& context, kernels::Addend* addend) const;
  /// x: [B, T, D]
  Heads heads_of(const at::Tensor& x, const StageContext& context) const;
  /// Queries, keys and values of three weights by one product; nothing where that is not possible.
  std::optional<Heads> joined_heads(const at::Tensor& x, const StageContext& context) const;
  /// x: [B, T, heads, head_dim] -> the same shape
  at::Tensor rotated(const at::Tensor& x, const StageContext& context) const;
  at::Tensor cos(const StageContext& c) const { return is_local_ ? c.local_rotary_cos : c.rotary_cos; }
  at::Tensor sin(const StageContext& c) const { return is_local_ ? c.local_rotary_sin : c.rotary_sin; }

  int64_t head_dim_, heads_, key_heads_;
  QkvForm form_;
  QueryKeyNorm norms_;
  bool is_rotary_, rotates_all_;  ///< rotates_all_: whole heads
  int64_t paired_;  ///< elements of a head that rotate with their neighbours; 0: with another half
  bool is_local_;   ///< has the local angles
  kernels::AttentionForm scores_;
  double dropout_;
  Compute compute_;
  bool recomputes_attention_ = false;
  std::shared_ptr<Linear> q_, k_, v_;  ///< k_, v_: null if q_ gives queries, keys and values
  std::shared_ptr<Linear> output_;
  std::shared_ptr<Norm> q_norm_, k_norm_;
};

}  // namespace fsdp::nn
