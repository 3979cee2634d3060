#pragma once

// Causal attention in tiles that stay in the cache for rows of any length: the scores of a tile exist only
// while it is computed (Dao et al.: FlashAttention, 2022, algorithms 1 and 4). Products are oneDNN's small
// products (brgemm), which sum in fp32. With Matmul::kAmx, the matrix unit multiplies bf16 if T and head_dim
// are multiples of 32.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "kernels/matmul.h"

namespace fsdp::kernels {

/// Whether there is a kernel: on CPUs with AVX-512, fp32 and, if the CPU multiplies it, bf16, with an even
/// head_dim. q: [B, T, heads, head_dim]
bool can_attend(const at::Tensor& q);

/// softmax(q k^T / sqrt(head_dim)) v, in which a token sees itself and earlier tokens. Supports autograd
/// (first derivatives). q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim], where kv_heads divides
/// heads; a head's elements are contiguous, other strides are free -> [B, T, heads, head_dim]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Matmul matmul);

/// Tiles, and the memory that a thread works in.
struct AttentionSizes {
  int64_t tokens = 0, head_dim = 0;
  int64_t element = 4;  ///< bytes

  static constexpr int64_t kQueries = 64;        ///< of a tile, at most
  static constexpr int64_t kKeys = 512;          ///< of a tile of forward
  static constexpr int64_t kKeysBackward = 128;  ///< of a tile of backward

  static constexpr int64_t even(int64_t n) { return (n + 1) / 2 * 2; }
  int64_t queries() const { return std::min(kQueries, even(tokens)); }
  int64_t keys() const { return std::min(kKeys, even(tokens)); }
  int64_t keys_backward() const { return std::min(kKeysBackward, even(tokens)); }
  /// [tokens, head_dim], packed.
  int64_t packed_bytes() const { return even(tokens) * head_dim * element; }

  int64_t forward_bytes() const {
    return 2 * packed_bytes() + queries() * keys() * (4 + element) + 4 * queries() * (head_dim + 2);
  }
  int64_t backward_bytes() const {
    return 5 * packed_bytes() + 4 * tokens * (3 * head_dim + 1) +
           queries() * keys_backward() * (2 * 4 + 3 * element);
  }
};

}  // namespace fsdp::kernels
