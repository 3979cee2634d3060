#pragma once

// Causal attention in tiles that stay in the cache for rows of any length: the scores of a tile exist only
// while it is computed (Dao et al.: FlashAttention, 2022, algorithms 1 and 4). Products are oneDNN's small
// products (brgemm), which sum in fp32. With Matmul::kAmx, the matrix unit multiplies bf16 if T and head_dim
// are multiples of 32.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// Whether there is a kernel: on CPUs with AVX2 fp32 and, with AVX-512 BF16, bf16, with an even head_dim.
/// q: [B, T, heads, head_dim]
bool can_attend(const at::Tensor& q);

/// The form of attention, which differs between models.
struct AttentionForm {
  double scale = 0;    ///< scale of the scores; 0: 1 / sqrt(head_dim)
  int64_t window = 0;  ///< tokens that a token attends to, the last of which is itself; 0: all earlier ones
  double cap = 0;      ///< scores s become cap tanh(s / cap) (Gemma 2, 2024, section 2); 0: no cap

  double scale_of(int64_t head_dim) const;
  /// Returns the form for rows of `tokens` tokens, without a window that they do not exceed.
  AttentionForm of(int64_t tokens) const { return {scale, window < tokens ? window : 0, cap}; }
  bool operator==(const AttentionForm&) const = default;
};

/// Returns softmax(q k^T / sqrt(head_dim)) v, in which a token attends to itself and earlier tokens, or
/// `form` of it. Supports autograd (first derivatives). q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads,
/// head_dim], where kv_heads divides heads; a head's elements are contiguous, other strides are free -> [B,
/// T, heads, head_dim]. With `recomputed`, backward computes the result again (recomputed.h).
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Matmul matmul,
                            const AttentionForm& form = {}, bool recomputed = false);

/// Queries, and the keys and values that they attend to: all of them or, if `causal`, those up to the query's
/// own position, where the last query attends to the last key (Tq <= Tk). q: [B, Tq, heads, head_dim]; k, v:
/// [B, Tk, kv_heads, head_dim]
struct AttentionInputs {
  at::Tensor q, k, v;
  bool causal = true;
  Matmul matmul = Matmul::kMkl;
  AttentionForm form = {};  ///< form of tiled_attention(); windows only with `causal`
};
/// y: like q; log_sums: [B, heads, Tq] fp32, the logarithms of the sums of e^score.
struct AttentionOutputs {
  at::Tensor y, log_sums;
};
struct AttentionGradients {
  at::Tensor dq, dk, dv;
};
/// Computes attention in tiles, without autograd. Requires: can_attend(), or meta tensors of such shapes.
AttentionOutputs tiled_attention(const AttentionInputs& inputs);
/// Returns the gradients by way of these keys. `of` and dy are those of all keys that the queries attend to.
AttentionGradients tiled_attention_backward(const AttentionInputs& inputs, const AttentionOutputs& of,
                                            const at::Tensor& dy);

/// Sizes of tiles, and the memory that a thread works in.
struct AttentionSizes {
  int64_t tokens = 0;  ///< number of queries
  int64_t seen = 0;    ///< number of keys
  int64_t head_dim = 0;
  int64_t element = 4;  ///< bytes of an element

  static constexpr int64_t kQueries = 64;        ///< limit on the queries of a tile
  static constexpr int64_t kKeys = 512;          ///< limit on the keys of a tile of forward
  static constexpr int64_t kKeysBackward = 128;  ///< limit on the keys of a tile of backward

  static constexpr int64_t even(int64_t n) { return (n + 1) / 2 * 2; }
  int64_t queries() const { return std::min(kQueries, even(tokens)); }
  int64_t keys() const { return std::min(kKeys, even(seen)); }
  int64_t keys_backward() const { return std::min(kKeysBackward, even(seen)); }
  /// Bytes of a packed [count, head_dim].
  int64_t packed_bytes(int64_t count) const { return even(count) * head_dim * element; }

  int64_t forward_bytes() const {
    return 2 * packed_bytes(seen) + queries() * keys() * (4 + element) + 4 * queries() * (head_dim + 2);
  }
  int64_t backward_bytes() const {
    return packed_bytes(seen) + 4 * packed_bytes(tokens) +
           4 * (2 * seen * head_dim + tokens * (head_dim + 1)) +
           queries() * keys_backward() * (2 * 4 + 3 * element);
  }
};

}  // namespace fsdp::kernels
