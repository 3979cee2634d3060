#pragma once

// Which ranks share what.
//
//   strategy                          units are cut over    and replicated over
//   full_shard, shard_grad_op         dcn x data            -
//   hybrid_shard, hybrid_shard_zero2  data                  dcn
//   no_shard                          -                     dcn x data
//
// Hybrid sharding keeps the gathers within a slice, and sends over the slow network between slices only the
// shard's gradient, once a step (Zhao et al.: PyTorch FSDP, VLDB 2023, section 3.2.2). Units of replicated
// parameters go by the last line whatever the strategy is.

#include <memory>
#include <string>

#include "comm/mesh.h"

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
ProcessGroups process_groups(const comm::Mesh& mesh, const std::string& strategy);

/// Of what every rank holds whole.
ProcessGroups replicated_groups(const comm::Mesh& mesh);

/// Over how many ranks a strategy cuts units, and how often it replicates them: the same in numbers.
struct GroupSizes {
  int shards = 1;
  int replicas = 1;
  bool operator==(const GroupSizes&) const = default;
};
GroupSizes group_sizes(const comm::MeshShape& mesh, const std::string& strategy);

/// "units sharded over data (4), replicated over dcn (2)", for people.
std::string describe_groups(const comm::MeshShape& mesh, const std::string& strategy);

}  // namespace fsdp::shard
