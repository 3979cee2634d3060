#pragma once

// The nodes of the tree of sums over samples (shard/engine/reduce/sample_tree.h) that one round of micro-batches yields. Needs no libtorch.

#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp::shard {

/// 2^level leaves, of which the first is a multiple of that.
struct SampleNode {
  int64_t first;
  int level;

  int64_t leaves() const { return int64_t{1} << level; }
  bool has(int64_t leaf) const { return leaf >= first && leaf < first + leaves(); }
};

/// The fewest nodes of at most `most` leaves, a power of two, that make up [first, first + count).
std::vector<SampleNode> nodes_of(int64_t first, int64_t count, int64_t most);

/// The most leaves of a node that a sum in pairs over `ranks` ranks in a row adds up as the tree does, wherever the node
/// begins: twice the largest power of two that divides their number and `first`, the leaf of the first of them. For a
/// power of two that divides `first`, all.
int64_t most_leaves(int64_t ranks, int64_t first = 0);

/// The leaves of a step: those from `first` on are summed up, a multiple of the ranks that cut a unit, as is their number.
struct SampleSpan {
  int64_t first = 0;
  int64_t leaves = std::numeric_limits<int64_t>::max();
};

/// What ranks do of a step: micro-batches of each, and the leaves of these.
struct SampleStep {
  int64_t rounds = 0;
  SampleSpan span = {};
  bool may_break_off = false;  ///< its sums are wanted then (Engine::begun_sums())
};

/// A rank among those that sum: one of `ranks`, which cut a unit, in one of `replicas`.
struct SamplePlace {
  int64_t ranks = 1, rank = 0, replicas = 1, replica = 0;
  /// Whether collectives of these add in pairs.
  bool ranks_in_pairs = true, replicas_in_pairs = true;
  SampleSpan span = {};
};

/// What a rank's reductions of one round of micro-batches add up.
struct SampleRound {
  static constexpr int kNone = -1;
  int64_t leaf;                    ///< this rank's; of no node, if the step has fewer
  int64_t end;                     ///< the leaf after those of the round
  std::vector<SampleNode> inside;  ///< of this rank's replica: what the reduce-scatter yields
  std::vector<SampleNode> all;     ///< of all replicas
  std::vector<int> from;           ///< by node of `all`: the one of `inside` that it has, or kNone
  int64_t gradients = 1;           ///< of a parameter
};

/// The number of nodes is the same for all rounds and replicas, if the first leaf and the number of leaves are multiples of
/// that of all ranks.
SampleRound sample_round(const SamplePlace& place, int64_t round);

}  // namespace fsdp::shard
