#include "shard/flat_layout.h"

#include <gtest/gtest.h>

namespace fsdp::shard {
namespace {

TEST(FlatLayout, PadsToAMultipleOfTheRanks) {
  FlatLayout layout({{"a", {3, 3}}, {"b", {2}}}, 4);
  EXPECT_EQ(layout.numel(), 11);
  EXPECT_EQ(layout.gathered_numel(), 12);
  EXPECT_EQ(layout.shard_numel(), 3);
  EXPECT_EQ(layout.parameters()[1].offset, 9);
}

TEST(FlatLayout, EveryElementIsInExactlyOneShard) {
  for (int world = 1; world <= 8; ++world) {
    FlatLayout layout({{"a", {3, 3}}, {"b", {2}}, {"c", {1}}, {"d", {5, 2}}}, world);
    for (size_t p = 0; p < layout.parameters().size(); ++p) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto [range, shard_offset] = layout.local_range(p, rank);
        if (range.begin == range.end) continue;
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(rank * layout.shard_numel() + shard_offset, layout.parameters()[p].offset + range.begin);
        next = range.end;
      }
      EXPECT_EQ(next, layout.parameters()[p].numel) << "world " << world;
    }
  }
}

TEST(FlatLayout, LeavesRanksEmptyWhenThereAreFewerElementsThanRanks) {
  FlatLayout layout({{"a", {2}}}, 5);
  EXPECT_EQ(layout.shard_numel(), 1);
  EXPECT_EQ(layout.local_range(0, 1).columns.end, 2);
  EXPECT_EQ(layout.local_range(0, 2).columns.begin, layout.local_range(0, 2).columns.end);
}

}  // namespace
}  // namespace fsdp::shard
