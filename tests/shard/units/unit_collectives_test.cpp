#include "shard/units/unit_collectives.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"

namespace fsdp::shard {
namespace {

using Kind = Command::Action;

/// A unit whose shards have 100 numbers of 4 bytes.
UnitSizes unit_of(const GroupSizes& groups) {
  UnitSizes unit;
  unit.shard_numel = 100 / groups.slices;
  unit.numel = unit.gathered_numel = unit.unsharded_numel = int64_t{100} * groups.shards;
  unit.groups = groups;
  return unit;
}

/// "reduce_scatter 400 among shards".
std::vector<std::string> texts(Kind command, const UnitSizes& unit) {
  const char* const kinds[] = {"all_gather", "reduce_scatter", "all_reduce"};
  const char* const groups[] = {"shards", "replicas", "slices"};
  std::vector<std::string> texts;
  for (const UnitCollective& each : collectives_of(command, unit, false)) {
    texts.push_back(concat(kinds[static_cast<int>(each.kind)], " ", each.bytes, " among ",
                           groups[static_cast<int>(each.among)]));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(UnitCollectives, FollowTheGroupsOfTheUnit) {
  const UnitSizes sharded = unit_of({.shards = 4});
  EXPECT_EQ(texts(Kind::kGather, sharded), Texts{"all_gather 400 among shards"});
  EXPECT_EQ(texts(Kind::kReduce, sharded), Texts{"reduce_scatter 400 among shards"});
  const UnitSizes whole = unit_of({.replicas = 4});
  EXPECT_EQ(texts(Kind::kGather, whole), Texts{});
  EXPECT_EQ(texts(Kind::kReduce, whole), Texts{"all_reduce 400 among replicas"});
  const UnitSizes sliced = unit_of({.shards = 4, .slices = 2});
  EXPECT_EQ(texts(Kind::kGatherSlices, sliced), Texts{"all_gather 200 among slices"});
  EXPECT_EQ(texts(Kind::kReduce, sliced),
            (Texts{"reduce_scatter 400 among shards", "reduce_scatter 200 among slices"}));
  EXPECT_EQ(texts(Kind::kReduce, unit_of({})), Texts{});
  EXPECT_EQ(texts(Kind::kReshard, sharded), Texts{});
}

TEST(UnitCollectives, AreCodedByTheLinksOfTheUnit) {
  using comm::LinkType;
  UnitSizes sharded = unit_of({.shards = 4});
  sharded.links = {.gather = LinkType::kInt8, .reduce = LinkType::kInt4};
  EXPECT_EQ(texts(Kind::kGather, sharded), Texts{"all_gather 102 among shards"});
  EXPECT_EQ(texts(Kind::kReduce, sharded), Texts{"reduce_scatter 52 among shards"});
  EXPECT_EQ(collectives_of(Kind::kGather, sharded, false).front().exact_bytes, 400);
  UnitSizes whole = unit_of({.replicas = 3});
  whole.links = {.gather_across = LinkType::kInt8, .reduce_across = LinkType::kInt8};
  EXPECT_EQ(texts(Kind::kReduce, whole), Texts{"all_reduce 108 among replicas"});  // 3 * (2 + 34)
  UnitSizes sliced = unit_of({.shards = 4, .slices = 2});
  sliced.links = {.gather_across = LinkType::kInt8, .reduce_across = LinkType::kInt4};
  EXPECT_EQ(texts(Kind::kReduce, sliced),
            (Texts{"reduce_scatter 400 among shards", "reduce_scatter 28 among slices"}));
}

TEST(UnitCollectives, LeaveOutTheReplicasInTheSlice) {
  const UnitSizes hybrid = unit_of({.shards = 4, .replicas = 2});
  EXPECT_EQ(texts(Kind::kReduce, hybrid),
            (Texts{"reduce_scatter 400 among shards", "all_reduce 400 among replicas"}));
  EXPECT_EQ(texts(Kind::kReduceInSlice, hybrid), Texts{"reduce_scatter 400 among shards"});
  EXPECT_EQ(texts(Kind::kReduceInSlice, unit_of({.replicas = 2})), Texts{});
}

TEST(UnitCollectives, BySampleHaveASlotForEachNode) {
  UnitSizes hybrid = unit_of({.shards = 2, .replicas = 2});
  hybrid.options.storage.sums_by_sample = true;
  EXPECT_EQ(texts(Kind::kReduce, hybrid),
            (Texts{"reduce_scatter 400 among shards", "reduce_scatter 200 among replicas",
                   "all_gather 200 among replicas"}));
}

TEST(UnitCollectives, OfACutUnitsReplicasHaveAQueueOfTheirOwn) {
  const auto queues = [](const GroupSizes& groups) {
    std::vector<size_t> queues;
    for (const UnitCollective& each : collectives_of(Kind::kReduce, unit_of(groups), true)) {
      queues.push_back(each.queue);
    }
    return queues;
  };
  const GroupSizes hybrid{.shards = 4, .replicas = 2}, whole{.replicas = 4};
  EXPECT_EQ(queues(hybrid), (std::vector<size_t>{reduction_queue(hybrid, true), kQueueAcross}));
  EXPECT_EQ(queues(whole), std::vector<size_t>{gather_queue(whole)});
}

TEST(UnitCollectives, AreCountedAsTraffic) {
  const Traffic traffic =
      UnitCollective{UnitCollective::Operation::kAllReduce, UnitCollective::Among::kReplicas, 400, 0}.traffic(
          3);
  EXPECT_EQ(traffic, (Traffic{.all_reduces = 3, .all_reduce_bytes = 1200}));
}

}  // namespace
}  // namespace fsdp::shard
