#pragma once

// Causal attention over a sequence that is cut over ranks: each rank has the queries of its chunks and needs
// the keys and values of all earlier tokens.
//
//   gather   keys and values of all ranks are all-gathered in forward and again in backward, where their
//            gradients are reduce-scattered (The Llama 3 Herd of Models, section 3.3.2). The keys and values
//            of all tokens exist in one layer at a time.
//   ring     keys and values are shifted from rank to rank while each rank computes with those that it has
//            (Liu, Zaharia, Abbeel: Ring Attention with Blockwise Transformers, 2023). Results are merged by
//            their log-sum-exp in fp32. In backward, the gradients of keys from another rank travel with the
//            keys until they return to their rank.
//
// Between forward and backward each rank keeps only its own queries, keys, values and results. With grouped
// queries, keys and values are sent without repetition; their gradients are sent in fp32.

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/kernels/matmul.h"
#include "model/parallel/attention_blocks.h"
#include "model/parallel/cut_sequence.h"

namespace fsdp::parallel {

/// The purpose of these collectives in traces and messages.
inline constexpr const char* kAttentionSite = "attention";

struct ContextAttentionOptions {
  std::shared_ptr<const CutSequence> cut = nullptr;
  /// Documents of whole rows; null: a row is one document.
  std::shared_ptr<const Documents> documents = nullptr;
  kernels::Matmul matmul = kernels::Matmul::kMkl;
  bool fused = true;  ///< see kernels::attention_block()
};

/// Returns softmax(q k^T / sqrt(head_dim)) v for this rank's tokens. Supports first derivatives. Collective
/// over the group of the cut, also in backward. q: [B, T / C, heads, head_dim]; k, v: [B, T / C, kv_heads,
/// head_dim], where kv_heads divides heads -> like q
///
///   collectives of a layer              forward                 backward
///   gather   all-gathers                1 of 2 e n              1 of 2 e n
///            reduce-scatters                                    1 of 8 n
///   ring     shifts                     C - 1 of 2 e n          C - 1 of 2 e n, C - 1 of 8 n
///
/// Sizes are bytes of a rank's payload, for C ranks with n = B * T / C * kv_heads * head_dim keys of e bytes.
at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const ContextAttentionOptions& options);

}  // namespace fsdp::parallel
