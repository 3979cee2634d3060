#pragma once

// Causal attention on GPUs by the kernels that libtorch chooses for rows of one length: cuDNN's or
// FlashAttention's. at::scaled_dot_product_attention() calls the same kernels. With it, however, the rotary
// positions, the views of queries, keys and values, and those of the result are eight more nodes of
// autograd's graph, each of which costs the host as much as the launch of two kernels.

#include <ATen/core/Tensor.h>

#include "model/kernels/joined_linear.h"

namespace fsdp::kernels {

/// Returns causal attention; undefined if libtorch chooses neither kernel. q: [B, T, heads, head_dim]; k, v:
/// [B, T, kv_heads, head_dim] -> [B, T, heads * head_dim]
at::Tensor device_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Returns device_attention() after joined_rotary() of qkv, which is overwritten unless the result is
/// undefined. qkv: [B, T, (queries + 2 keys) head_dim]; cos, sin: [T, head_dim] fp32
at::Tensor rotary_attention(const at::Tensor& qkv, const JoinedHeads& heads, const at::Tensor& cos,
                            const at::Tensor& sin);

}  // namespace fsdp::kernels
