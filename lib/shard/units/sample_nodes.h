#pragma once

// The nodes of the tree of sums over samples (shard/engine/reduce/sample_tree.h) that one round of
// micro-batches yields.

#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp::shard {

/// A node with 2^level leaves, the first of which is a multiple of that number.
struct SampleNode {
  int64_t first;
  int level;

  int64_t leaves() const { return int64_t{1} << level; }
  bool has(int64_t leaf) const { return leaf >= first && leaf < first + leaves(); }
};

/// Returns the fewest nodes that make up [first, first + count), each of at most `most` leaves, a power of
/// two.
std::vector<SampleNode> nodes_of(int64_t first, int64_t count, int64_t most);

/// Returns the largest number of leaves of a node that a sum in pairs over `ranks` ranks in a row adds as the
/// tree does, wherever the node begins. It is twice the largest power of two that divides both the number of
/// ranks and `first`, the leaf of the first rank, and all ranks if their number is a power of two that
/// divides `first`.
int64_t most_leaves(int64_t ranks, int64_t first = 0);

/// The leaves of a step that are summed: [first, leaves). Both are multiples of the number of ranks that cut
/// a unit.
struct SampleSpan {
  int64_t first = 0;
  int64_t leaves = std::numeric_limits<int64_t>::max();
};

/// The part of a step that is summed.
struct SampleStep {
  int64_t rounds = 0;          ///< number of micro-batches of each rank
  SampleSpan span = {};        ///< leaves of these micro-batches
  bool may_break_off = false;  ///< whether the sums are kept for a step that fails (begun_sample_sums())
};

/// The place of a rank among the ranks that sum: one of `ranks`, which cut a unit, in one of `replicas`.
struct SamplePlace {
  int64_t ranks = 1, rank = 0, replicas = 1, replica = 0;
  bool ranks_in_pairs = true, replicas_in_pairs = true;  ///< whether collectives of the group add in pairs
  SampleSpan span = {};
};

/// The sums of one round of micro-batches.
struct SampleRound {
  static constexpr int kNone = -1;
  int64_t leaf;                    ///< this rank's leaf; part of no node if the step has fewer leaves
  int64_t end;                     ///< the leaf after those of the round
  std::vector<SampleNode> inside;  ///< nodes of this rank's replica, which the reduce-scatter yields
  std::vector<SampleNode> all;     ///< nodes of all replicas
  std::vector<int> from;           ///< index into `inside` for each node of `all`, or kNone
  int64_t gradients = 1;           ///< number of gradients that a parameter has
};

/// Returns the sums of round number `round`. All rounds and replicas have the same number of nodes if the
/// first leaf and the number of leaves are multiples of the number of all ranks.
SampleRound sample_round(const SamplePlace& place, int64_t round);

}  // namespace fsdp::shard
