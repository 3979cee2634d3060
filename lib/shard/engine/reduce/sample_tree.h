#pragma once

// The sum of a step's gradients along a fixed binary tree over its samples, whatever the number of ranks
// (ShardOptions::sums_by_sample).
//
// The leaves are micro-batches of 2^n samples, in the order of their positions in the step: micro-batch k of
// rank r of W is leaf k * W + r. A rank owns a part of each unit and gets the nodes of this part in that
// order: sums over neighbouring ranks where a node is within one round of micro-batches, and single leaves
// elsewhere. SampleTree adds them.
//
// The sums over ranks that are nodes depend on the position of the round: with 3 ranks, the leaves of the
// rounds are [0 1] [2], [3] [4 5], [6 7] [8], ... A reduction therefore moves a slot for each node. A rank
// fills the slots of the nodes that its leaf belongs to, and -0 elsewhere, because x + -0 is x even for x =
// 0. Collectives add ranks in pairs (Communicator::adds_in_pairs()), which is the order of the tree for nodes
// of at most most_leaves() ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shard/units/sample_nodes.h"

namespace fsdp::shard {

/// The sum along one tree. A copy shares its sums, and neither tree writes to them from then on.
class SampleTree {
 public:
  /// Begins a sum over this many leaves.
  void begin(int64_t leaves);
  /// Adds the next node, fp32, whose tensor the tree takes over.
  void push(int level, at::Tensor sum);
  /// Whether all leaves have been added.
  bool is_complete() const { return leaves_ > 0 && found_ == leaves_; }
  /// Returns the sum of a complete tree, and leaves the tree empty.
  at::Tensor take();

 private:
  struct NodeSum {
    int level;
    at::Tensor sum;
  };
  void merge();

  int64_t leaves_ = 0, found_ = 0;
  std::vector<NodeSum> parts_;  ///< nodes that wait for their neighbours, the largest first
};

/// The gradients of a unit's shard over the first leaves of a step.
struct SampleSums {
  int64_t leaves = 0;
  std::vector<SampleTree> trees{};  ///< one for each gradient of a parameter; tied weights have two
};

}  // namespace fsdp::shard
