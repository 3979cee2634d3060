#pragma once

// Attention that is computed block by block: of some queries to some of the keys that they see. The results of
// blocks with other keys are merged by their log-sum-exp (Dao: FlashAttention-2, 2023, section 3.1). Without
// autograd.

#include "model/kernels/attention.h"

namespace fsdp::kernels {

/// By the tiles of model/kernels/attention.h, by libtorch's FlashAttention on GPUs or, for other tensors and without
/// `fused`, by libtorch's products, of some queries at a time.
AttentionOutputs attention_block(const AttentionInputs& inputs, bool fused = true);

/// The gradients by way of the block's keys, where `of` and dy are those of all keys that the queries see.
AttentionGradients attention_block_backward(const AttentionInputs& inputs, const AttentionOutputs& of,
                                            const at::Tensor& dy, bool fused = true);

/// Adds the result of a block with other keys to `sum`, whose y is fp32. Shapes as those of `block`.
void merge_attention(const AttentionOutputs& sum, const AttentionOutputs& block);

}  // namespace fsdp::kernels
