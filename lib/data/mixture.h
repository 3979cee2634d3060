#pragma once

// How samples of several sets are mixed by weights: a function of the global index alone, as the order within
// a set is (sample_order.h), so that any rank of any world size can ask for any place of the run.
//
// The run is cut into blocks of kBlock positions. In each block set k has n_k places, its weight's share by
// largest remainders, so weights are met to 1 / kBlock, exactly in each block. The places of a set are spread
// evenly over the block; with shuffling, the block is permuted anew each time.

#include <cstdint>
#include <vector>

#include "data/sample_order.h"

namespace fsdp::data {

class Mixture {
 public:
  static constexpr int64_t kBlock = 1 << 16;

  /// Weights are above 0 and need not sum to 1; no more than kBlock sets.
  Mixture(const std::vector<double>& weights, bool shuffle, uint64_t seed);

  struct Place {
    size_t set = 0;
    int64_t index = 0;  ///< of so many samples of that set, from 0; goes on counting over its epochs
  };
  Place at(int64_t global_index) const;

  /// Places of a set in a block.
  int64_t count(size_t set) const { return counts_[set]; }

 private:
  std::vector<int64_t> counts_;   ///< [set]
  std::vector<uint16_t> set_of_;  ///< [kBlock]
  std::vector<int32_t> rank_of_;  ///< [kBlock] places of the same set before it
  SampleOrder order_;             ///< of a block
};

}  // namespace fsdp::data
