#pragma once

// The sum of a step's gradients along a fixed binary tree over its samples, whatever the number of ranks
// (ShardOptions::sums_by_sample).
//
// The leaves are micro-batches of 2^n samples, in the order of their positions in the step: the k-th of rank r of W is leaf
// k * W + r. A rank owns a part of each unit and gets, for this part, nodes of the tree in that order: sums over
// neighbouring ranks where a node lies within one round of micro-batches, and single leaves where it does not. SampleTree
// adds them up.
//
// Which sums over ranks are nodes depends on the position of the round: of 3 ranks, the leaves of the rounds are
// [0 1] [2], [3] [4 5], [6 7] [8], ... A reduction therefore moves a slot for each node. A rank fills the slots of the nodes
// that its leaf belongs to and -0 elsewhere: x + -0 is x, for x = 0 too. Collectives add ranks in pairs
// (Communicator::adds_in_pairs()), which for nodes of at most most_leaves() ranks is the order of the tree.

#include <ATen/core/Tensor.h>

#include <cstdint>
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
/// begins: twice the largest power of two that divides their number. For a power of two, all.
int64_t most_leaves(int64_t ranks);

class SampleTree {
 public:
  /// Begins a sum over this many leaves.
  void begin(int64_t leaves);
  /// The next node, fp32, which the tree takes over.
  void push(int level, at::Tensor sum);
  /// Whether all leaves are there.
  bool is_complete() const { return leaves_ > 0 && found_ == leaves_; }
  /// The sum of a complete tree, which is empty from then on.
  at::Tensor take();

 private:
  struct Part {
    int level;
    at::Tensor sum;
  };
  void merge();

  int64_t leaves_ = 0, found_ = 0;
  std::vector<Part> parts_;  ///< that wait for their neighbours; the largest first
};

}  // namespace fsdp::shard
