#pragma once

// Embedding and loss whose table of [vocabulary, D] is cut over ranks by rows. Parts are those of
// torch.chunk(): all have ceil(vocabulary / ranks) rows except the last, which has the rest. So a vocabulary
// that the number of ranks does not divide, such as GPT-2's 50,257, needs no padding.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/kernels/fused.h"
#include "model/parallel/collectives.h"

namespace fsdp::parallel {

/// Rows [begin, end) of a vocabulary.
struct VocabularyRows {
  int64_t begin = 0, end = 0;
};
/// Returns a rank's rows. Throws Error(kUsage) if a rank of the group would have none.
VocabularyRows vocabulary_rows(int64_t vocabulary, int64_t ranks, int64_t rank);

/// Ids as rows of this rank's part of a table. Ids of other parts are 0, and marked in `elsewhere`.
struct LocalIds {
  at::Tensor ids, elsewhere;  ///< [...] int64, bool
};
LocalIds local_ids(const at::Tensor& ids, int64_t vocabulary, const Ranks& ranks);

/// Returns rows of this rank's part of a table, with zeros for ids of other parts, so that the sum over ranks
/// is the embedding. weight: [rows of the part, D], ids: [...] int64 in [0, vocabulary) -> [..., D]
at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary, bool fused,
                          const Ranks& ranks);

/// Returns kernels::linear_cross_entropy() over the whole vocabulary, on every rank. No rank computes logits
/// of other parts: for each chunk of rows, four numbers a row are gathered (RowStatistics in
/// model/kernels/rows.h). The gradient of x is this rank's share. x: [N, D], the same on all ranks; weight:
/// [rows of the part, D]
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                int64_t vocabulary, kernels::Matmul matmul, const kernels::LossTerms& terms,
                                const Ranks& ranks);

/// Returns kernels::linear_log_probs() over the whole vocabulary in the same way.
kernels::TokenLogProbs linear_log_probs(const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& targets, int64_t vocabulary, kernels::Matmul matmul,
                                        const kernels::LossTerms& terms, const Ranks& ranks);

/// Gathers the scores of all tokens. logits: [..., rows of the part] -> [..., vocabulary]
at::Tensor gather_logits(const at::Tensor& logits, int64_t vocabulary, const Ranks& ranks);

}  // namespace fsdp::parallel
