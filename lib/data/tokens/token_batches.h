#pragma once

// Batches of samples of similar length by number of tokens (data.max_tokens, fairseq's --max-tokens).

#include <cstdint>
#include <span>
#include <vector>

#include "data/options/datasets.h"

namespace fsdp::data {

/// Batches of samples. The samples in a batch depend on the samples, the limit and the seed alone, not on
/// ranks, and not on the epoch: the loader visits the batches in another order in each epoch. Takes 8 bytes
/// of memory per sample.
class TokenBatches {
 public:
  /// Sorts the samples by length, those of one length by the seed if `shuffle`, and cuts batches from the
  /// shortest on. A batch ends before its number of rows times its longest row would exceed max_tokens.
  /// Throws Error(kUsage) for a sample that alone exceeds it, and for samples without known lengths.
  TokenBatches(const Samples& samples, int64_t max_tokens, bool shuffle, uint64_t seed);

  int64_t num_batches() const { return static_cast<int64_t>(ends_.size()); }
  /// Returns the samples of a batch, the longest last.
  std::span<const int64_t> batch(int64_t index) const;

 private:
  std::vector<int64_t> order_;  ///< all samples, batch by batch
  std::vector<int64_t> ends_;   ///< end of each batch in order_: [batches]
};

}  // namespace fsdp::data
