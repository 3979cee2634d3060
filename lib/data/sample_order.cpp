#include "data/sample_order.h"

#include <bit>

#include "util/error.h"
#include "util/hash.h"

namespace fsdp::data {
namespace {
// Four rounds are enough on large domains; on the few bits of a small data set more are needed before the
// permutations look unrelated, and they cost nanoseconds.
constexpr uint64_t kRounds = 8;
}  // namespace

SampleOrder::SampleOrder(int64_t num_samples, bool shuffle, uint64_t seed)
    : num_samples_(num_samples), shuffle_(shuffle), seed_key_(util::mix64(seed)) {
  FSDP_CHECK(num_samples > 0);
  int bits = std::bit_width(static_cast<uint64_t>(num_samples - 1));
  half_bits_ = (bits + 1) / 2;
}

int64_t SampleOrder::sample(int64_t global_index) const {
  FSDP_CHECK(global_index >= 0, "global index ", global_index);
  int64_t index = global_index % num_samples_;
  if (!shuffle_) return index;
  auto epoch = static_cast<uint64_t>(global_index / num_samples_);
  uint64_t epoch_key = util::mix64(seed_key_ ^ epoch);
  // The network permutes its domain, so the walk from a sample returns to a sample at last.
  auto value = static_cast<uint64_t>(index);
  do {
    value = permute(value, epoch_key);
  } while (value >= static_cast<uint64_t>(num_samples_));
  return static_cast<int64_t>(value);
}

uint64_t SampleOrder::permute(uint64_t value, uint64_t epoch_key) const {
  uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    uint64_t mixed = left ^ (util::mix64(util::mix64(epoch_key + round) ^ right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace fsdp::data
