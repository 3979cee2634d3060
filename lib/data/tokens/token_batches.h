#pragma once

// Batches by number of tokens (data.max_tokens, as fairseq's --max-tokens): samples of like length together, as
// many as fit.

#include <cstdint>
#include <span>
#include <vector>

#include "data/options/datasets.h"

namespace fsdp::data {

/// Which samples form a batch depends on the samples, the limit and the seed alone: not on ranks, and not on the
/// epoch, in each of which the loader visits the batches in another order. Memory: 8 bytes a sample.
class TokenBatches {
 public:
  /// Sorts the samples by length, those of one length by the seed if `shuffle`, and cuts batches from the
  /// shortest on: a batch ends before rows times its longest row would exceed max_tokens. Throws Error(kUsage)
  /// for a sample that alone exceeds it, and for samples that do not tell their lengths.
  TokenBatches(const Samples& samples, int64_t max_tokens, bool shuffle, uint64_t seed);

  int64_t num_batches() const { return static_cast<int64_t>(ends_.size()); }
  /// The samples of a batch, the longest last.
  std::span<const int64_t> batch(int64_t index) const;

 private:
  std::vector<int64_t> order_;  ///< all samples, batch by batch
  std::vector<int64_t> ends_;   ///< [batches] in order_
};

}  // namespace fsdp::data
