#pragma once

// libtorch's FlashAttention (Dao: FlashAttention-2, 2023) on GPUs, called without libtorch's choice among its
// kernels. On compute capability 9.0 and 10.0 libtorch prefers cuDNN, which builds a plan for every new
// length (milliseconds of the host). This suits rows of one length (device_attention.h), but neither
// documents nor texts that grow token by token. cuDNN's layout for documents is not used:
// libtorch 2.11 writes beyond its memory there, and with 2.15 it has yet to be measured (docs/gpus.md).

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/kernels/attention.h"

namespace fsdp::kernels {

/// Consecutive documents in the rows of a batch.
struct PackedDocuments {
  /// Positions of the documents' beginnings and of the last one's end: [documents + 1] int32, on q's device.
  at::Tensor bounds;
  int64_t longest = 0;  ///< upper bound of the tokens of a document
};

/// Whether the tensors are supported: bf16 or fp16 on a GPU for which libtorch has kernels. Shapes as below.
bool can_use_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Attention in which each token attends to itself and the earlier tokens of its document, by one launch.
/// Requires: `form` has no cap. q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads, head_dim] -> like q
at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const PackedDocuments& documents, const AttentionForm& form = {});

/// Attention of a row's last T tokens to themselves and to the tokens before them. Requires: `form` has no
/// cap. q: [B, T, heads, head_dim]; k, v: [B, L, kv_heads, head_dim], L >= T -> like q
at::Tensor flash_attention_to_earlier(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionForm& form = {});

/// Computes a block of attention (model/kernels/attention_block.h) with more than one query.
AttentionOutputs flash_attention_with_log_sums(const AttentionInputs& inputs);
AttentionGradients flash_attention_backward(const AttentionInputs& inputs, const AttentionOutputs& of,
                                            const at::Tensor& dy);

/// Returns the kernels that libtorch chooses for causal attention on this GPU. Shapes as above, L = T.
at::SDPBackend choice_of_libtorch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
/// Returns the kernels' name: "cuDNN", "flash", "memory-efficient" or "no fused".
const char* name_of_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace fsdp::kernels
