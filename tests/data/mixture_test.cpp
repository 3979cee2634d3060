#include "data/mixture.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace fsdp::data {
namespace {

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
      const Mixture::Place place = mixture.at(i);
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
