#pragma once

// The order in which a run uses samples, within a data set and across several. It is a function of the global
// index alone, so that any rank of any world size can compute any position of the run directly.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace fsdp::data {

/// The order within a data set.
///
/// If shuffled, each epoch is a permutation of the samples keyed by (seed, epoch). It is a Feistel network
/// (Luby and Rackoff, How to construct pseudorandom permutations from pseudorandom functions, SIAM J. Comput.
/// 1988) on the smallest power of four that is at least the number of samples, with rounds keyed by
/// util::mix64. A result that is not a sample is fed into the network again until it is one: cycle walking
/// (Black and Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002), less than four passes on average.
/// Nothing is stored, whatever the number of samples.
class SampleOrder {
 public:
  /// Requires: num_samples is positive.
  SampleOrder(int64_t num_samples, bool shuffle, uint64_t seed);

  /// Returns the sample at `global_index` (from 0) of the run. An epoch of num_samples has every sample once.
  int64_t sample(int64_t global_index) const;

  int64_t num_samples() const { return num_samples_; }

 private:
  uint64_t permute(uint64_t value, uint64_t epoch_key) const;

  int64_t num_samples_;
  bool shuffle_;
  uint64_t seed_key_;
  int half_bits_;
};

/// A mixture of several sets of samples by weights.
///
/// The run is divided into blocks of kBlock positions. In each block set k has n_k positions: its weight's
/// share by largest remainders. So weights are met to 1 / kBlock, exactly in each block. The positions of a
/// set are spread evenly over the block; with shuffling, each block is permuted anew.
class Mixture {
 public:
  static constexpr int64_t kBlock = 1 << 16;

  /// Requires: weights above 0, which need not sum to 1, and at most kBlock sets.
  Mixture(const std::vector<double>& weights, bool shuffle, uint64_t seed);

  struct MixedSample {
    size_t set = 0;
    int64_t index = 0;  ///< index of the sample in its set, from 0 through all epochs of the set
  };
  MixedSample at(int64_t global_index) const;

  /// Number of positions of a set in a block.
  int64_t count(size_t set) const { return counts_[set]; }

  /// Number of positions of a set before one: the index of its sample there, in sets that are read in order.
  /// Thread-safe.
  int64_t count_before(size_t set, int64_t global_index) const;

 private:
  std::vector<int64_t> counts_;   ///< positions of each set in a block: [set]
  std::vector<uint16_t> set_of_;  ///< [kBlock]
  std::vector<int32_t> rank_of_;  ///< number of earlier positions of the same set: [kBlock]
  SampleOrder order_;             ///< order of the positions in a block

  /// Positions of a block in its order, and the number of earlier ones of each set at every 256th of them.
  struct CountedBlock {
    int64_t number = -1;
    std::vector<int32_t> counts;  ///< [kBlock / kCountedPart, sets]
  };
  static constexpr int64_t kCountedPart = 256;
  struct Counted {
    std::mutex mutex;
    CountedBlock block;  ///< of the last block that was asked for
  };
  std::unique_ptr<Counted> counted_ = std::make_unique<Counted>();
};

}  // namespace fsdp::data
