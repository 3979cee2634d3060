#pragma once

// RankTree: the ranks of a group as a tree, up which texts are combined for rank 0. Groups have a bounded
// size, and the number of messages per rank grows with the logarithm of the world.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Consecutive ranks form groups of kFanIn ranks; the first ranks of the groups form groups again, up to one.
class RankTree {
 public:
  static constexpr int kFanIn = 16;

  /// Collective. A world of up to kFanIn ranks needs no new connections.
  explicit RankTree(Communicator& communicator);

  /// The groups that a rank is in, from the leaves up: the first rank of a group is in the next one too.
  static std::vector<std::vector<int>> groups_of(int rank, int world_size);

  /// Combines the texts of ranks `first` to `last`, in rank order: all ranks below a node of the tree.
  using Combine = std::function<std::string(const std::vector<std::string>& texts, int first, int last)>;

  /// Returns the result of the last combine() on rank 0, and of a rank's own last one elsewhere. Collective;
  /// `combine`, which must not throw, runs on the first rank of each group.
  std::string reduce(std::string text, const Combine& combine, const CallSite& site) const;

 private:
  std::vector<std::vector<int>> ranks_;
  std::vector<std::shared_ptr<Communicator>> groups_;
  int world_size_;
};

}  // namespace fsdp::comm
