#pragma once

// The order in which a run sees samples, within a data set and across several: a function of the global index
// alone, so that any rank of any world size can ask for any place of the run without having walked there.

#include <cstdint>
#include <vector>

namespace fsdp::data {

/// The order within a data set.
///
/// Shuffled, each epoch is a permutation of the samples keyed by (seed, epoch). It is a Feistel network (Luby
/// and Rackoff, How to construct pseudorandom permutations from pseudorandom functions, SIAM J. Comput. 1988)
/// on the smallest power of four that holds all samples, its rounds keyed by util::mix64. Results that are
/// not a sample are fed into it again until one is: cycle walking (Black and Rogaway, Ciphers with arbitrary
/// finite domains, CT-RSA 2002), less than four passes on average. Nothing is stored, whatever the number of
/// samples.
class SampleOrder {
 public:
  /// num_samples must be positive.
  SampleOrder(int64_t num_samples, bool shuffle, uint64_t seed);

  /// The sample at `global_index` (from 0) of the run; num_samples indices make an epoch, which holds every
  /// sample once.
  int64_t sample(int64_t global_index) const;

  int64_t num_samples() const { return num_samples_; }

 private:
  uint64_t permute(uint64_t value, uint64_t epoch_key) const;

  int64_t num_samples_;
  bool shuffle_;
  uint64_t seed_key_;
  int half_bits_;
};

/// How samples of several sets are mixed by weights.
///
/// The run is cut into blocks of kBlock positions. In each block set k has n_k places, its weight's share by
/// largest remainders, so weights are met to 1 / kBlock, exactly in each block. The places of a set are
/// spread evenly over the block; with shuffling, each block is permuted anew.
class Mixture {
 public:
  static constexpr int64_t kBlock = 1 << 16;

  /// Weights are above 0 and need not sum to 1; at most kBlock sets.
  Mixture(const std::vector<double>& weights, bool shuffle, uint64_t seed);

  struct Place {
    size_t set = 0;
    int64_t index = 0;  ///< counts the samples of that set from 0, through all its epochs
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
