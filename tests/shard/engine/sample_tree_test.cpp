#include "shard/engine/reduce/sample_tree.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>

#include "base/util/error.h"
#include "comm/api/memory_operations.h"

namespace fsdp::shard {
namespace {

std::string text(const std::vector<SampleNode>& nodes) {
  std::string text;
  for (const SampleNode& node : nodes) {
    text += concat(text.empty() ? "" : " ", node.first, "+", node.leaves());
  }
  return text;
}

TEST(NodesOf, CutARoundIntoTheFewest) {
  EXPECT_EQ(text(nodes_of(0, 4, 4)), "0+4");
  EXPECT_EQ(text(nodes_of(0, 3, 4)), "0+2 2+1");
  EXPECT_EQ(text(nodes_of(3, 3, 4)), "3+1 4+2");
  EXPECT_EQ(text(nodes_of(6, 6, 4)), "6+2 8+4");
  EXPECT_EQ(text(nodes_of(8, 4, 1)), "8+1 9+1 10+1 11+1");
}

/// Plans rely on it (shard/units/unit_sizes.h).
TEST(SampleRound, HasAsManyNodesInEveryRoundAndReplica) {
  for (const int64_t ranks : {1, 2, 3, 5, 6, 7, 8, 10, 12, 14}) {
    for (const int64_t replicas : {1, 2, 3, 6}) {
      const SampleRound first = sample_round({.ranks = ranks, .replicas = replicas}, 0);
      for (int64_t round = 0; round < 9; ++round) {
        for (int64_t replica = 0; replica < replicas; ++replica) {
          const SampleRound other =
              sample_round({.ranks = ranks, .replicas = replicas, .replica = replica}, round);
          EXPECT_EQ(other.inside.size(), first.inside.size()) << ranks << " ranks, round " << round;
          EXPECT_EQ(other.all.size(), first.all.size()) << ranks << " ranks, " << replicas << " replicas";
        }
      }
    }
  }
}

/// The sum of the leaves that ranks of any number get to by their rounds, for one element a rank and shard.
at::Tensor sum_of(const at::Tensor& leaves, int64_t ranks) {
  SampleTree tree;
  tree.begin(leaves.size(0));
  for (int64_t first = 0; first < leaves.size(0); first += ranks) {
    for (const SampleNode& node : nodes_of(first, ranks, most_leaves(ranks))) {
      // What the ranks put into the node's slot, summed as by a reduce-scatter.
      std::vector<at::Tensor> parts;
      for (int64_t leaf = first; leaf < first + ranks; ++leaf) {
        parts.push_back(node.has(leaf) ? leaves[leaf].clone() : at::full_like(leaves[leaf], -0.0));
      }
      const at::Tensor sum = at::empty_like(leaves[0]);
      comm::sum_in_rank_order(sum, parts);
      tree.push(node.level, sum);
    }
  }
  EXPECT_TRUE(tree.is_complete());
  return tree.take();
}

TEST(SampleTree, SumsDoNotDependOnTheNumberOfRanks) {
  const at::Tensor leaves = at::randn({240, 100});
  leaves.select(1, 0).fill_(-0.0);  // stays -0
  const at::Tensor one = sum_of(leaves, 1);
  EXPECT_FALSE(at::equal(one, leaves.sum(0)));  // another order
  for (const int64_t ranks : {2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 40}) {
    const at::Tensor sum = sum_of(leaves, ranks);
    EXPECT_TRUE(at::equal(sum.view(at::kInt), one.view(at::kInt))) << ranks << " ranks";
  }
}

/// What all replicas add to the tree of the ranks with this part, from span.first on.
void add_rounds(SampleTree& tree, const at::Tensor& leaves, SamplePlace place) {
  place.span.leaves = leaves.size(0);
  const int64_t of_all = place.ranks * place.replicas;
  for (int64_t round = 0; place.span.first + round * of_all < leaves.size(0); ++round) {
    std::vector<SampleNode> nodes;
    std::vector<std::vector<at::Tensor>> slots(
        static_cast<size_t>(place.replicas));  // of each replica, by node of `all`
    for (place.replica = 0; place.replica < place.replicas; ++place.replica) {
      std::vector<SampleRound> rounds;
      for (place.rank = 0; place.rank < place.ranks; ++place.rank)
        rounds.push_back(sample_round(place, round));
      const at::Tensor nothing = at::full_like(leaves[0], -0.0);
      std::vector<at::Tensor> sums;
      for (const SampleNode& node : rounds[0].inside) {
        std::vector<at::Tensor> parts;
        for (const SampleRound& each : rounds) {
          // One that has no leaf of the step puts in something else.
          const at::Tensor own =
              each.leaf < leaves.size(0) ? leaves[each.leaf] : at::full_like(leaves[0], 1e3);
          parts.push_back(node.has(each.leaf) ? own.clone() : nothing.clone());
        }
        sums.push_back(at::empty_like(leaves[0]));
        comm::sum_in_rank_order(sums.back(), parts);
      }
      nodes = rounds[0].all;
      for (const int from : place.replicas == 1 ? std::vector<int>{} : rounds[0].from) {
        slots[static_cast<size_t>(place.replica)].push_back(
            from == SampleRound::kNone ? nothing : sums[static_cast<size_t>(from)]);
      }
      if (place.replicas == 1) slots[0] = sums;
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const auto& of_replica : slots) parts.push_back(of_replica[i].clone());
      const at::Tensor sum = at::empty_like(leaves[0]);
      comm::sum_in_rank_order(sum, parts);
      tree.push(nodes[i].level, sum);
    }
  }
}

TEST(SampleTree, MayBeContinuedByOtherRanks) {
  const at::Tensor leaves = at::randn({120, 10});
  const at::Tensor one = sum_of(leaves, 1);
  for (const int64_t ranks : {1, 2, 3, 4, 6}) {
    for (const int64_t replicas : {1, 2, 3, 4, 5, 8}) {
      for (int64_t first = 0; first < 120; first += ranks) {
        if (120 % ranks != 0) continue;
        SampleTree tree;
        tree.begin(120);
        for (int64_t leaf = 0; leaf < first; ++leaf) tree.push(0, leaves[leaf].clone());
        const SampleTree kept = tree;
        add_rounds(tree, leaves, {.ranks = ranks, .replicas = replicas, .span = {.first = first}});
        ASSERT_TRUE(tree.is_complete());
        EXPECT_TRUE(at::equal(tree.take(), one)) << replicas << " replicas of " << ranks << " from " << first;
        // What it was continued from can be continued again.
        SampleTree again = kept;
        add_rounds(again, leaves, {.ranks = ranks, .span = {.first = first}});
        EXPECT_TRUE(at::equal(again.take(), one)) << ranks << " ranks from " << first;
      }
    }
  }
}

TEST(SampleTree, KnowsWhetherAllLeavesAreThere) {
  SampleTree tree;
  EXPECT_FALSE(tree.is_complete());
  tree.begin(3);
  tree.push(1, at::ones({1}));
  EXPECT_FALSE(tree.is_complete());
  tree.push(0, at::ones({1}));
  EXPECT_TRUE(tree.is_complete());
  EXPECT_EQ(tree.take().item<float>(), 2);
}

}  // namespace
}  // namespace fsdp::shard
