#include "base/util/free_ranges.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace fsdp::util {
namespace {

TEST(FreeRanges, TakeTheSmallestThatFitsAndJoinNeighbours) {
  FreeRanges ranges(0, 100);
  ASSERT_EQ(ranges.take(10, 1), 0);
  ASSERT_EQ(ranges.take(10, 1), 10);
  ASSERT_EQ(ranges.take(10, 1), 20);
  ranges.give_back(0, 10);
  EXPECT_EQ(ranges.take(5, 1), 0);
  EXPECT_EQ(ranges.take(80, 1), std::nullopt);
  ranges.give_back(20, 10);
  EXPECT_EQ(ranges.take(80, 1), 20);
  EXPECT_EQ(ranges.take(1, 8), 8) << "of 5..9 only 8 is aligned";
  EXPECT_EQ(ranges.take(2, 8), std::nullopt);
  ranges.give_back(8, 1);
  ranges.give_back(0, 5);
  EXPECT_EQ(ranges.take(10, 1), 0);
}

using Sort = Arena::Sort;

TEST(Arena, HasBuffersOutsideUntilItIsLongEnough) {
  Arena arena;
  for (int round = 0; round < 2; ++round) {
    const Arena::Allocation first = arena.take(1000, Sort::kFirst), second = arena.take(500, Sort::kSecond);
    EXPECT_EQ(first.is_outside, round == 0);
    EXPECT_EQ(second.is_outside, round == 0);
    if (round == 1) {
      EXPECT_EQ(first.offset, 0);
      EXPECT_EQ(second.offset, 1024);
      EXPECT_EQ(arena.longer(), std::nullopt);
    } else {
      EXPECT_EQ(arena.longer(), 1024 + 512);
    }
    arena.give_back(first);
    arena.give_back(second);
    EXPECT_EQ(arena.live(), 0);
    if (round == 0) arena.grow();
  }
  EXPECT_EQ(arena.length(), 1024 + 512);
}

/// Takes and gives back, each place while its successor is there already; returns the length that it takes.
int64_t length_for(const std::vector<std::pair<int64_t, Sort>>& buffers, size_t at_once) {
  Arena arena;
  for (int round = 0; round < 3; ++round) {
    std::vector<Arena::Allocation> live;
    auto overlap = [](const Arena::Allocation& a, const Arena::Allocation& b) {
      return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
    };
    for (const auto& [bytes, sort] : buffers) {
      live.push_back(arena.take(bytes, sort));
      EXPECT_EQ(live.back().is_outside, round == 0);
      for (size_t i = 0; round > 0 && i + 1 < live.size(); ++i) {
        EXPECT_FALSE(overlap(live[i], live.back()));
        EXPECT_LE(live[i].offset + live[i].bytes, arena.length());
      }
      if (live.size() < at_once) continue;
      arena.give_back(live.front());
      live.erase(live.begin());
    }
    for (const Arena::Allocation& place : live) arena.give_back(place);
    if (round == 0) arena.grow();
  }
  return arena.length();
}

TEST(Arena, TakesTheWayThatNeedsLess) {
  const std::pair<int64_t, Sort> parameters = {640, Sort::kFirst}, gradients = {1280, Sort::kSecond};
  EXPECT_EQ(
      length_for({{640, Sort::kFirst}, {640, Sort::kSecond}, {640, Sort::kFirst}, {640, Sort::kSecond}}, 2),
      2 * 640);
  EXPECT_EQ(length_for({parameters, parameters, gradients, parameters, gradients, parameters, gradients}, 3),
            2 * 640 + 2 * 1280);
}

}  // namespace
}  // namespace fsdp::util
