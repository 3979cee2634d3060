#pragma once

// The groups of ranks that communicate with one another; which they are is told in shard/group_sizes.h.

#include <memory>
#include <string>

#include "comm/mesh.h"
#include "shard/group_sizes.h"
#include "shard/options.h"

namespace fsdp::shard {

struct ProcessGroups {
  std::shared_ptr<comm::Communicator> world;
  std::shared_ptr<comm::Communicator> shard;  ///< the ranks over which each unit is cut
  std::shared_ptr<comm::Communicator>
      replicate;  ///< the ranks that hold the same shard as this one; null: only this one

  int replicas() const { return replicate ? replicate->world_size() : 1; }
  int replica_rank() const { return replicate ? replicate->rank() : 0; }
};

/// Those of the strategy. Not collective.
ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy);

/// Of what every rank holds whole.
ProcessGroups replicated_groups(const comm::Mesh& mesh);

}  // namespace fsdp::shard
