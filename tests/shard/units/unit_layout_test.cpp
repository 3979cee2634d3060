#include "shard/units/unit_layout.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "shard/engine/layout_views.h"
#include "shard/units/unit_choice.h"

namespace fsdp::shard {
namespace {

using Parameters = std::vector<UnitLayout::Parameter>;

const Parameters& odd_parameters() {
  static const Parameters parameters = {{"square", {3, 3}, 0},  {"wide", {2, 7}, 1}, {"cube", {3, 5, 2}, 1},
                                        {"last", {2, 3, 4}, 2}, {"tiny", {1}, 0},    {"number", {}, 0},
                                        {"none", {0, 3}, 1}};
  return parameters;
}

/// Values that identify parameter and element.
at::Tensor values_of(const UnitLayout& layout, size_t parameter) {
  const ParameterPlace& place = layout.parameters()[parameter];
  return (at::arange(place.numel, at::kFloat) + 1000.0 * static_cast<double>(parameter + 1))
      .view(place.shape);
}

at::Tensor shard_of(const UnitLayout& layout, int rank) {
  at::Tensor shard = at::zeros({layout.shard_numel()});
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    auto local = local_piece(layout, i, rank, values_of(layout, i), shard);
    local.gathered.copy_(local.whole);
  }
  return shard;
}

TEST(FlatLayout, PadsToAMultipleOfTheRanks) {
  FlatLayout layout({{"a", {3, 3}}, {"b", {2}}}, 4);
  EXPECT_EQ(layout.numel(), 11);
  EXPECT_EQ(layout.gathered_numel(), 12);
  EXPECT_EQ(layout.shard_numel(), 3);
  EXPECT_EQ(layout.parameters()[1].offset, 9);
}

TEST(FlatLayout, BeginsShardsThatAreNotTinyAtMultiplesOf16Bytes) {
  const Parameters block = {{"a", {896, 4864}}, {"b", {4863, 896}}, {"c", {7}}};
  for (int world : {2, 3, 6, 7, 32, 100}) {
    FlatLayout layout(block, world);
    EXPECT_EQ(layout.shard_numel() % 8, 0) << world;
    EXPECT_LT(layout.gathered_numel() - layout.numel(), 8 * world);
  }
  EXPECT_EQ(FlatLayout(block, 1).shard_numel(), FlatLayout(block, 1).numel());
}

TEST(FlatLayout, EveryElementIsInExactlyOneShard) {
  for (int world = 1; world <= 8; ++world) {
    const int64_t rows = world == 7 ? 30'001 : 5;  // shards that are aligned
    FlatLayout layout({{"a", {3, 3}}, {"b", {2}}, {"c", {1}}, {"d", {rows, 2}}}, world);
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

TEST(PerParameterLayout, CutsOnTheDimensionAsTorchChunkDoes) {
  PerParameterLayout layout({{"a", {10, 4}, 0}, {"b", {4, 10}, 1}}, 4);
  EXPECT_EQ(layout.shard_numel(), 3 * 4 + 4 * 3);
  const util::Rectangle last = layout.local_range(0, 3).columns;
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.begin, 36);
  EXPECT_EQ(last.end, 40);  // one row in place of three
  const auto [columns, shard_offset] = layout.local_range(1, 1);
  EXPECT_EQ(columns.rows, 4);
  EXPECT_EQ(columns.begin, 3);
  EXPECT_EQ(columns.end, 6);
  EXPECT_EQ(shard_offset, 12);
  EXPECT_EQ(columns.numel(), 12);
}

TEST(PerParameterLayout, RanksBeyondTheDimensionHaveNothing) {
  PerParameterLayout layout({{"a", {3, 2}, 0}}, 8);
  EXPECT_EQ(layout.shard_numel(), 2);
  for (int rank = 3; rank < 8; ++rank) EXPECT_EQ(layout.local_range(0, rank).columns.numel(), 0);
}

TEST(PerParameterLayout, ShardsOneAfterAnotherAreTheParameters) {
  for (int world = 1; world <= 9; ++world) {
    PerParameterLayout layout(odd_parameters(), world);
    std::vector<at::Tensor> shards;
    for (int rank = 0; rank < world; ++rank) shards.push_back(shard_of(layout, rank));
    at::Tensor gathered = at::cat(shards);
    ASSERT_EQ(gathered.numel(), layout.gathered_numel());
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      const ParameterPlace& place = layout.parameters()[i];
      at::Tensor whole = at::full(place.shape, -1.0f);
      auto pieces = pieces_of(layout, i, whole, gathered);
      EXPECT_LE(pieces.size(), 2u);
      for (auto& piece : pieces) piece.whole.copy_(piece.gathered);
      EXPECT_TRUE(at::equal(whole, values_of(layout, i))) << place.name << ", world " << world;
    }
  }
}

TEST(PerParameterLayout, EveryElementIsInExactlyOneShard) {
  for (int world = 1; world <= 9; ++world) {
    PerParameterLayout layout(odd_parameters(), world);
    for (size_t i = 0; i < layout.parameters().size(); ++i) {
      int64_t numel = 0;
      for (int rank = 0; rank < world; ++rank) numel += layout.local_range(i, rank).columns.numel();
      EXPECT_EQ(numel, layout.parameters()[i].numel) << "world " << world;
    }
  }
}

TEST(PerParameterLayout, IsTheFlatOneInAWorldOfOne) {
  PerParameterLayout layout(odd_parameters(), 1);
  FlatLayout flat(odd_parameters(), 1);
  EXPECT_TRUE(layout.gathers_in_place());
  EXPECT_EQ(layout.shard_numel(), flat.shard_numel());
  EXPECT_TRUE(at::equal(shard_of(layout, 0), shard_of(flat, 0)));
}

TEST(PerParameterLayout, TakesTheFirstOfTheLargestDimensions) {
  const DimensionPolicy largest = shard_dimension_policy("largest", /*shard_1d_parameters=*/true);
  EXPECT_EQ(largest("a", {4, 4}), 0);
  EXPECT_EQ(largest("a", {4, 8, 8}), 1);
  EXPECT_EQ(largest("a", {}), 0);
}

}  // namespace
}  // namespace fsdp::shard
