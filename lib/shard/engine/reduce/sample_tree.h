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

#include "shard/units/sample_nodes.h"

namespace fsdp::shard {

/// A copy shares its sums, which neither writes to any more.
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
  struct NodeSum {
    int level;
    at::Tensor sum;
  };
  void merge();

  int64_t leaves_ = 0, found_ = 0;
  std::vector<NodeSum> parts_;  ///< that wait for their neighbours; the largest first
};

/// The gradients of a unit's shard, of a step's first leaves.
struct SampleSums {
  int64_t leaves = 0;
  std::vector<SampleTree> trees{};  ///< by gradient of a parameter: the second is that of tied weights
};

}  // namespace fsdp::shard
