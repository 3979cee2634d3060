#pragma once

// Attention of some queries to some of their keys, one block at a time. The results of blocks with other keys
// are merged by their log-sum-exp (Dao: FlashAttention-2, 2023, section 3.1). Without autograd.

#include "model/kernels/attention.h"

namespace fsdp::kernels {

/// Computes a block: by the tiles of model/kernels/attention.h, by libtorch's FlashAttention on GPUs or, for
/// other tensors and without `fused`, by libtorch's products, for some queries at a time.
AttentionOutputs attention_block(const AttentionInputs& inputs, bool fused = true);

/// Returns the gradients by way of the block's keys. `of` and dy are those of all keys of the queries.
AttentionGradients attention_block_backward(const AttentionInputs& inputs, const AttentionOutputs& of,
                                            const at::Tensor& dy, bool fused = true);

/// Merges the result of a block with other keys into `sum`, whose y is fp32. Shapes are those of `block`.
void merge_attention(const AttentionOutputs& sum, const AttentionOutputs& block);

}  // namespace fsdp::kernels
