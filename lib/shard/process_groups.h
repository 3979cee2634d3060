#pragma once

#include <memory>

#include "comm/communicator.h"

namespace fsdp::shard {

/// Which ranks share what.
///
///   strategy                     shard      replicate
///   full_shard, shard_grad_op    the world  none
///   no_shard                     this rank  the world
struct ProcessGroups {
  std::shared_ptr<comm::Communicator> world;
  std::shared_ptr<comm::Communicator> shard;  ///< the ranks over which each unit is cut
  std::shared_ptr<comm::Communicator>
      replicate;  ///< the ranks that hold the same shard as this one; null: only this one

  int replicas() const { return replicate ? replicate->world_size() : 1; }
  int replica_rank() const { return replicate ? replicate->rank() : 0; }
};

}  // namespace fsdp::shard
