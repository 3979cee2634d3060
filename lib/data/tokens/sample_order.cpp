#include "data/tokens/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/util/error.h"
#include "base/util/hash.h"

namespace fsdp::data {
namespace {

// Four rounds are enough on large domains. The few bits of a small data set need more rounds until the
// permutations look unrelated, and rounds cost nanoseconds.
constexpr uint64_t kRounds = 8;

/// Returns the positions of each set in a block, by largest remainders, at least one each.
std::vector<int64_t> shares(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t set = 0; set < weights.size(); ++set) {
    FSDP_CHECK(weights[set] > 0 && std::isfinite(weights[set]), "weight ", weights[set]);
    const double exact = weights[set] / sum * static_cast<double>(Mixture::kBlock);
    counts.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact)));
    remainders.emplace_back(exact - static_cast<double>(counts.back()), set);
  }
  int64_t left = Mixture::kBlock - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::stable_sort(remainders.begin(), remainders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++counts[remainders[i].second];
  // Sets that were raised to one place take it from the largest set.
  for (; left < 0; ++left) --*std::max_element(counts.begin(), counts.end());
  return counts;
}

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
  // The network permutes its domain, so the walk from a sample eventually returns to a sample.
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

Mixture::Mixture(const std::vector<double>& weights, bool shuffle, uint64_t seed)
    : order_(kBlock, shuffle, util::hash_of(seed, "mixture of sets")) {
  FSDP_CHECK(!weights.empty() && static_cast<int64_t>(weights.size()) <= kBlock);
  counts_ = shares(weights);
  struct Turn {
    double when;
    uint16_t set;
    int32_t rank;
  };
  std::vector<Turn> turns;
  for (size_t set = 0; set < counts_.size(); ++set) {
    for (int64_t i = 0; i < counts_[set]; ++i) {
      turns.push_back({(static_cast<double>(i) + 0.5) / static_cast<double>(counts_[set]),
                       static_cast<uint16_t>(set), static_cast<int32_t>(i)});
    }
  }
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.when < b.when; });
  for (const Turn& turn : turns) {
    set_of_.push_back(turn.set);
    rank_of_.push_back(turn.rank);
  }
}

Mixture::MixedSample Mixture::at(int64_t global_index) const {
  const auto slot = static_cast<size_t>(order_.sample(global_index));
  const size_t set = set_of_[slot];
  return {.set = set, .index = global_index / kBlock * counts_[set] + rank_of_[slot]};
}

int64_t Mixture::count_before(size_t set, int64_t global_index) const {
  const int64_t number = global_index / kBlock, first = number * kBlock,
                sets = static_cast<int64_t>(counts_.size());
  const auto set_at = [this](int64_t index) { return set_of_[static_cast<size_t>(order_.sample(index))]; };
  const int64_t part = (global_index - first) / kCountedPart;
  int64_t count = number * counts_[set];
  {
    const std::lock_guard lock(counted_->mutex);
    CountedBlock& block = counted_->block;
    if (block.number != number) {
      block.number = number;
      block.counts.clear();
      std::vector<int32_t> before(counts_.size());
      for (int64_t index = 0; index < kBlock; ++index) {
        if (index % kCountedPart == 0) block.counts.insert(block.counts.end(), before.begin(), before.end());
        ++before[set_at(first + index)];
      }
    }
    count += block.counts[static_cast<size_t>(part * sets) + set];
  }
  for (int64_t index = first + part * kCountedPart; index < global_index; ++index) {
    count += set_at(index) == set ? 1 : 0;
  }
  return count;
}

}  // namespace fsdp::data
