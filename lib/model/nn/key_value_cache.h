#pragma once

// Inference with a key-value cache: a model runs on new tokens only and attends to the cached keys and values
// of earlier tokens (Pope et al.: Efficiently Scaling Transformer Inference, 2022, section 2.1).
//
//   KeyValueCache cache(options, prompt.size() + 100);
//   at::Tensor scores = next_scores(model, prompt, cache);      // [B, vocab_size]
//   scores = next_scores(model, chosen, cache);                 // one more token per row

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "model/families/options.h"
#include "model/kernels/attention.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// Keys and values of the tokens that a model has seen, for each of its attention stages; all rows have the
/// same number of tokens. Memory is allocated at the first use, for `capacity` tokens per row:
/// 2 * layers * rows * capacity * kv_heads * head_dim elements. Not thread-safe.
class KeyValueCache {
 public:
  /// Throws Error(kUsage) for a capacity beyond longest_sequence().
  KeyValueCache(const ModelOptions& options, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  /// Cached tokens per row, which is also the position of the next token.
  int64_t length() const { return length_; }

  /// Replaces row i by the former row rows[i], to copy a prompt or to drop rows. rows: [R] int64
  void select_rows(const at::Tensor& rows);

  /// Throws Error(kUsage) unless `tokens` more fit. Models call it.
  void require_room(int64_t tokens) const;
  /// Called by attention stages. Keeps keys and values of the new tokens, [B, T, kv_heads, head_dim], and
  /// returns those of all tokens, [B, kv_heads, length() + T, head_dim], as views.
  std::pair<at::Tensor, at::Tensor> append(const Stage& attention, const at::Tensor& keys,
                                           const at::Tensor& values);
  /// Counts the new tokens. Models call it after all stages have appended.
  void advance(int64_t tokens) { length_ += tokens; }

  /// Appends `ids` to the rows of a model that does not use the cache and so runs on whole rows.
  /// ids: [B, T] int64 -> [B, length so far + T]
  at::Tensor whole_rows(const at::Tensor& ids);
  bool has_whole_rows() const { return has_whole_rows_; }
  /// Returns the tokens that the model has to see for `ids` to follow the cached tokens: ids, or all tokens
  /// of the rows, after the cache was emptied, if the longer rows have other rotary frequencies.
  at::Tensor tokens_to_see(const at::Tensor& ids);

 private:
  struct Kept {
    at::Tensor keys, values;  // [B, kv_heads, capacity, head_dim]
  };
  std::unordered_map<const Stage*, Kept> of_;
  ModelOptions options_;
  at::Tensor seen_;  ///< [B, L] int64: all tokens, if whole_rows() or tokens_to_see() may need them
  bool has_whole_rows_ = false;
  int64_t capacity_, length_ = 0, max_positions_;
};

/// Scores of all new tokens. ids: [B, T] int64, which follow the cached tokens -> [B, T, vocab_size]. Equal
/// to the last T scores of the model for whole rows, up to rounding; a model that does not advance() the
/// cache is run on whole rows. Collective if the model is sharded; without autograd.
at::Tensor scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache);

/// Scores of the token after the last one only -> [B, vocab_size].
at::Tensor next_scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache);

/// Attention of new tokens to themselves and to the cached tokens.
/// q: [B, T, heads, head_dim]; keys, values: [B, kv_heads, L, head_dim], the last T of which are the new
/// tokens' -> [B, T, heads, head_dim]
at::Tensor attend_to_cache(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                           const kernels::AttentionForm& form = {});

}  // namespace fsdp::nn
