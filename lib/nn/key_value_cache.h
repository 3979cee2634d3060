#pragma once

// Inference with a key-value cache: a model runs on new tokens only, and attends to what it kept of those
// before them (Pope et al.: Efficiently Scaling Transformer Inference, 2022, section 2.1).
//
//   KeyValueCache cache(options, prompt.size() + 100);
//   at::Tensor scores = next_scores(model, prompt, cache);      // [B, vocab_size]
//   scores = next_scores(model, chosen, cache);                 // of one more token a row

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Keys and values of the tokens that a model has seen, for each of its attention stages; the tokens of all
/// rows are equally many. Memory is taken at the first use, for `capacity` tokens a row:
/// 2 * layers * rows * capacity * kv_heads * head_dim elements. One thread at a time.
class KeyValueCache {
 public:
  /// Throws Error(kUsage) for a capacity beyond longest_sequence(options).
  KeyValueCache(const ModelOptions& options, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  /// Tokens of a row that are in it: the position of the next one.
  int64_t length() const { return length_; }

  /// Row i becomes what row rows[i] was: copies of one prompt, or the rows that are still wanted.
  /// rows: [R] int64
  void select_rows(const at::Tensor& rows);

  /// For models. Throws Error(kUsage) unless `tokens` more fit.
  void require_room(int64_t tokens) const;
  /// For attention stages: keeps keys and values of the new tokens, [B, T, kv_heads, head_dim], and returns
  /// those of all tokens, [B, kv_heads, length() + T, head_dim], as views.
  std::pair<at::Tensor, at::Tensor> append(const Stage& attention, const at::Tensor& keys,
                                           const at::Tensor& values);
  /// For models, when all stages have appended.
  void advance(int64_t tokens) { length_ += tokens; }

  /// Of a model that keeps nothing here, and so runs on whole rows: the tokens of a row so far, then `ids`.
  /// ids: [B, T] int64 -> [B, length so far + T]
  at::Tensor whole_rows(const at::Tensor& ids);
  bool has_whole_rows() const { return seen_.defined(); }

 private:
  struct Kept {
    at::Tensor keys, values;  // [B, kv_heads, capacity, head_dim]
  };
  std::unordered_map<const Stage*, Kept> of_;
  at::Tensor seen_;  ///< [B, L] int64: tokens of whole_rows(); undefined: it was not called
  int64_t capacity_, length_ = 0, max_positions_;
};

/// Scores of all new tokens: ids: [B, T] int64, which follow what is in the cache -> [B, T, vocab_size]. A
/// model that does not advance() the cache is run on the whole rows.
/// Equal to the last T of what the model gives for the whole rows, up to rounding. Collective where the model
/// is sharded; records nothing for a backward.
at::Tensor scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache);

/// Those of the token after the last: -> [B, vocab_size]. The others are not computed.
at::Tensor next_scores(Stage& model, const at::Tensor& ids, KeyValueCache& cache);

/// Attention of new tokens to themselves and to what the cache has.
/// q: [B, T, heads, head_dim]; keys, values: [B, kv_heads, L, head_dim], the last T of which are the new
/// tokens' -> [B, T, heads, head_dim]
at::Tensor attend_to_cache(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values);

}  // namespace fsdp::nn
