#include "data/tokens/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/util/error.h"

namespace fsdp::data {
namespace {

std::vector<int64_t> take(const SampleOrder& order, int64_t begin, int64_t count) {
  std::vector<int64_t> samples;
  for (int64_t i = begin; i < begin + count; ++i) samples.push_back(order.sample(i));
  return samples;
}

TEST(SampleOrder, WithoutShufflingIsTheIndexModuloTheSamples) {
  SampleOrder order(5, false, 1);
  EXPECT_EQ(take(order, 0, 7), (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1}));
}

TEST(SampleOrder, EveryEpochHoldsEverySampleOnce) {
  for (int64_t n :
       {1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 64, 65, 97, 100, 255, 256, 257, 1009, 4096, 1'000'000}) {
    SampleOrder order(n, true, 42);
    for (int64_t epoch : {0, 1, 5}) {
      std::vector<bool> seen(static_cast<size_t>(n), false);
      for (int64_t i = 0; i < n; ++i) {
        int64_t sample = order.sample(epoch * n + i);
        ASSERT_GE(sample, 0);
        ASSERT_LT(sample, n);
        ASSERT_FALSE(seen[static_cast<size_t>(sample)]) << sample << " twice, n " << n << ", epoch " << epoch;
        seen[static_cast<size_t>(sample)] = true;
      }
    }
  }
}

TEST(SampleOrder, ReachesAnyIndexOfAVeryLargeSetAtOnce) {
  const int64_t n = INT64_MAX / 2;
  SampleOrder order(n, true, 42);
  for (int64_t index : {int64_t{0}, n - 1, n, INT64_MAX}) {
    EXPECT_GE(order.sample(index), 0);
    EXPECT_LT(order.sample(index), n);
  }
}

TEST(SampleOrder, EpochsDiffer) {
  SampleOrder order(100, true, 42);
  EXPECT_NE(take(order, 0, 100), take(order, 100, 100));
  EXPECT_NE(take(order, 100, 100), take(order, 200, 100));
}

TEST(SampleOrder, SeedsDiffer) {
  EXPECT_NE(take(SampleOrder(100, true, 1), 0, 100), take(SampleOrder(100, true, 2), 0, 100));
}

TEST(SampleOrder, IsTheSameForTheSameSeed) {
  EXPECT_EQ(take(SampleOrder(100, true, 7), 0, 300), take(SampleOrder(100, true, 7), 0, 300));
}

// Six samples have 720 orders; over many seeds each sample should come first about equally often, and so
// should each of the orders of the first two.
TEST(SampleOrder, SpreadsSmallSetsEvenly) {
  const int kSeeds = 30'000;
  int first[6] = {}, pairs[6][6] = {};
  for (int seed = 0; seed < kSeeds; ++seed) {
    SampleOrder order(6, true, static_cast<uint64_t>(seed));
    ++first[order.sample(0)];
    ++pairs[order.sample(0)][order.sample(1)];
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(first[i], kSeeds / 6, 400);
    for (int j = 0; j < 6; ++j) {
      EXPECT_NEAR(pairs[i][j], i == j ? 0 : kSeeds / 30, i == j ? 0 : 200) << i << " " << j;
    }
  }
}

// Neighbours in the order should not be neighbours in the file: the mean distance of two random places of n
// is n/3.
TEST(SampleOrder, ScattersNeighbours) {
  const int64_t n = 100'000;
  SampleOrder order(n, true, 3);
  double sum = 0;
  for (int64_t i = 0; i + 1 < n; ++i)
    sum += std::abs(static_cast<double>(order.sample(i) - order.sample(i + 1)));
  EXPECT_NEAR(sum / static_cast<double>(n - 1), static_cast<double>(n) / 3, 500);
}

// The order is part of what a seed means: a run resumed by a newer build must continue the order of the older
// one.
TEST(SampleOrder, NeverChanges) {
  EXPECT_EQ(take(SampleOrder(10, true, 1234), 0, 20),
            (std::vector<int64_t>{8, 1, 9, 0, 4, 5, 2, 7, 6, 3, 1, 5, 0, 4, 6, 7, 8, 2, 3, 9}));
  EXPECT_EQ(take(SampleOrder(1'000'003, true, 1234), 5'000'000, 6),
            (std::vector<int64_t>{857957, 932500, 799105, 143160, 349752, 573491}));
}

TEST(SampleOrder, RefusesNonsense) {
  EXPECT_THROW(SampleOrder(0, true, 1), util::Error);
  EXPECT_THROW(SampleOrder(3, true, 1).sample(-1), util::Error);
}

TEST(Mixture, GivesEachSetItsShareInEveryBlock) {
  for (bool shuffle : {false, true}) {
    const Mixture mixture({7, 2, 1}, shuffle, 5);
    for (int64_t block = 0; block < 3; ++block) {
      std::map<size_t, int64_t> counts;
      for (int64_t i = 0; i < Mixture::kBlock; ++i) ++counts[mixture.at(block * Mixture::kBlock + i).set];
      EXPECT_NEAR(static_cast<double>(counts[0]) / Mixture::kBlock, 0.7, 1e-4);
      EXPECT_NEAR(static_cast<double>(counts[1]) / Mixture::kBlock, 0.2, 1e-4);
      EXPECT_EQ(counts[0] + counts[1] + counts[2], Mixture::kBlock);
      for (size_t set = 0; set < 3; ++set) EXPECT_EQ(counts[set], mixture.count(set));
    }
  }
}

TEST(Mixture, GivesEverySampleOfASetOnceInItsTurn) {
  for (bool shuffle : {false, true}) {
    const Mixture mixture({1, 3}, shuffle, 9);
    std::map<size_t, std::set<int64_t>> seen;
    const int64_t length = 2 * Mixture::kBlock;
    for (int64_t i = 0; i < length; ++i) {
      const Mixture::MixedSample place = mixture.at(i);
      EXPECT_TRUE(seen[place.set].insert(place.index).second);
    }
    for (size_t set : {0, 1}) {
      EXPECT_EQ(static_cast<int64_t>(seen[set].size()), 2 * mixture.count(set));
      EXPECT_EQ(*seen[set].begin(), 0);
      EXPECT_EQ(*seen[set].rbegin(), 2 * mixture.count(set) - 1);
    }
  }
}

TEST(Mixture, SpreadsSetsEvenlyWithoutShuffling) {
  const Mixture mixture({3, 1}, false, 0);
  for (int64_t i = 0; i < 400; i += 4) {
    int64_t of_second = 0;
    for (int64_t j = i; j < i + 4; ++j) of_second += mixture.at(j).set == 1;
    EXPECT_EQ(of_second, 1) << i;
  }
}

TEST(Mixture, ShufflesEachBlockOtherwise) {
  const Mixture mixture({1, 1}, true, 1), other({1, 1}, true, 2);
  int64_t same_block = 0, same_seed = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    same_block += mixture.at(i).set == mixture.at(i + Mixture::kBlock).set;
    same_seed += mixture.at(i).set == other.at(i).set;
  }
  EXPECT_NEAR(same_block, 2000, 150);
  EXPECT_NEAR(same_seed, 2000, 150);
}

TEST(Mixture, LeavesNoSetOut) {
  const Mixture mixture({1e9, 1e-9, 1e-9}, true, 3);
  EXPECT_EQ(mixture.count(1), 1);
  EXPECT_EQ(mixture.count(0) + mixture.count(1) + mixture.count(2), Mixture::kBlock);
}

}  // namespace
}  // namespace fsdp::data
