#pragma once

// The ranks of a group as a tree, up which texts are combined: where each rank has something to say to rank 0, in
// groups of a bounded size and a number of messages per rank that grows with the logarithm of the world.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Consecutive ranks form groups of kFanIn, the first ranks of those form groups again, up to one group.
class RankTree {
 public:
  static constexpr int kFanIn = 16;

  /// Collective. A world of up to kFanIn ranks needs no new connections.
  explicit RankTree(Communicator& communicator);

  /// The groups that a rank is in, from the leaves up: the first rank of one is in the next too.
  static std::vector<std::vector<int>> groups_of(int rank, int world_size);

  /// The texts of the ranks from `first` to `last`, in their order, which are all ranks below one of the tree.
  using Combine = std::function<std::string(const std::vector<std::string>& texts, int first, int last)>;

  /// What the last combine() returns, on rank 0; what a rank's own last one did, on the others. Collective;
  /// `combine`, which must not throw, runs on the first rank of each group.
  std::string reduce(std::string text, const Combine& combine, const CallSite& site) const;

 private:
  std::vector<std::vector<int>> ranks_;
  std::vector<std::shared_ptr<Communicator>> groups_;
  int world_size_;
};

}  // namespace fsdp::comm
