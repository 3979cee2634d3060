#pragma once

// The order in which samples are seen: a function of the global index alone, so that any rank of any world
// size can ask for any place of the run without having walked there.
//
// Shuffled, each epoch is a permutation of the samples keyed by (seed, epoch). It is a Feistel network (Luby
// and Rackoff, How to construct pseudorandom permutations from pseudorandom functions, SIAM J. Comput. 1988)
// on the smallest power of four that holds all samples, its rounds keyed by util::mix64. Results that are not
// a sample are fed into it again until one is: cycle walking (Black and Rogaway, Ciphers with arbitrary
// finite domains, CT-RSA 2002), less than four passes on average. Nothing is stored, whatever the number of
// samples.

#include <cstdint>

namespace fsdp::data {

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

}  // namespace fsdp::data
