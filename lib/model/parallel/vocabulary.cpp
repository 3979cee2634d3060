#include "model/parallel/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "base/util/error.h"

namespace fsdp::parallel {
namespace {

int64_t largest_part(int64_t vocabulary, int64_t ranks) { return (vocabulary + ranks - 1) / ranks; }

/// Combines RowStatistics of parts to those of whole rows: [ranks, rows, 4] -> [rows, 4]
at::Tensor combined(const at::Tensor& parts) {
  const at::Tensor most = parts.select(2, 0), top = most.amax(0);
  const at::Tensor sum = (parts.select(2, 1) * (most - top).exp()).sum(0);
  return at::stack({top, sum, parts.select(2, 2).sum(0), parts.select(2, 3).sum(0)}, 1);
}

/// The part of the vocabulary that a rank has. `ranks` must outlive it.
kernels::VocabularyPart part_of(int64_t vocabulary, const Ranks& ranks) {
  return {.first = vocabulary_rows(vocabulary, ranks.count(), ranks.rank()).begin,
          .whole = vocabulary,
          .most = largest_part(vocabulary, ranks.count()),
          .combine = [&ranks](const at::Tensor& statistics) {
            statistics.copy_(combined(gathered(statistics, ranks)));
          }};
}

}  // namespace

VocabularyRows vocabulary_rows(int64_t vocabulary, int64_t ranks, int64_t rank) {
  const int64_t most = largest_part(vocabulary, ranks);
  if (most * (ranks - 1) >= vocabulary) {
    fail(ErrorKind::kUsage, "a vocabulary of ", vocabulary, " in parts of ", most, " leaves some of ", ranks,
         " ranks without a row; use at most ", (vocabulary + most - 1) / most, " ranks or a vocabulary of ",
         ranks * most);
  }
  return {.begin = rank * most, .end = std::min(vocabulary, (rank + 1) * most)};
}

LocalIds local_ids(const at::Tensor& ids, int64_t vocabulary, const Ranks& ranks) {
  const VocabularyRows rows = vocabulary_rows(vocabulary, ranks.count(), ranks.rank());
  const at::Tensor elsewhere = (ids < rows.begin).bitwise_or(ids >= rows.end);
  return {(ids - rows.begin).masked_fill_(elsewhere, 0), elsewhere};
}

at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary, bool fused,
                          const Ranks& ranks) {
  const auto [local, elsewhere] = local_ids(ids, vocabulary, ranks);
  const at::Tensor found = fused ? kernels::embedding(weight, local) : at::embedding(weight, local);
  return found.masked_fill(elsewhere.unsqueeze(-1), 0);
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                int64_t vocabulary, kernels::Matmul matmul, const kernels::LossTerms& terms,
                                const Ranks& ranks) {
  const kernels::VocabularyPart part = part_of(vocabulary, ranks);
  return kernels::linear_cross_entropy(x, weight, targets, matmul, terms, &part);
}

kernels::TokenLogProbs linear_log_probs(const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& targets, int64_t vocabulary, kernels::Matmul matmul,
                                        const kernels::LossTerms& terms, const Ranks& ranks) {
  const kernels::VocabularyPart part = part_of(vocabulary, ranks);
  return kernels::linear_log_probs(x, weight, targets, matmul, terms, &part);
}

at::Tensor gather_logits(const at::Tensor& logits, int64_t vocabulary, const Ranks& ranks) {
  const int64_t missing = largest_part(vocabulary, ranks.count()) - logits.size(-1);
  const at::Tensor padded = missing == 0 ? logits : at::constant_pad_nd(logits, {0, missing});
  return gather_alike(padded, -1, ranks).narrow(-1, 0, vocabulary);
}

}  // namespace fsdp::parallel
