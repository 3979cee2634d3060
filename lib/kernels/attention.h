#pragma once

// Causal attention in tiles that stay in the cache, whatever the length of a row: the scores of a tile exist
// only while it is worked on (Dao et al.: FlashAttention, 2022, algorithms 1 and 4). Products are oneDNN's
// small ones (brgemm), which add up in fp32, in bf16 too. With Matmul::kAmx, bf16 goes by the matrix unit if
// T and head_dim are multiples of 32.

#include <ATen/core/Tensor.h>

#include "kernels/matmul.h"

namespace fsdp::kernels {

/// Whether there is a kernel for it: fp32 and, where the CPU multiplies that, bf16, on a CPU with AVX-512,
/// heads of an even width. q: [B, T, heads, head_dim]
bool can_attend(const at::Tensor& q);

/// softmax(q k^T / sqrt(head_dim)) v, where a token sees itself and those before it. Works under autograd
/// (first derivatives).
/// q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim], of which heads is a multiple; elements of a
/// head lie side by side, other strides are free -> [B, T, heads, head_dim]
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Matmul matmul);

}  // namespace fsdp::kernels
