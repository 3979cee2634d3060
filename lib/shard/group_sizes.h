#pragma once

// Which ranks share a unit.
//
//   strategy                          units are cut over    and replicated over
//   full_shard, shard_grad_op         dcn x data x context  -
//   hybrid_shard, hybrid_shard_zero2  data x context        dcn
//   no_shard                          -                     dcn x data x context
//
// The ranks of a context group compute with all parameters, on different tokens, as those of data do.
//
// Hybrid sharding keeps all-gathers within a slice and sends only the shards' gradients over the slow network
// between slices, once a step (Zhao et al.: PyTorch FSDP, VLDB 2023, section 3.2.2). Units of replicated
// parameters follow the last line under every strategy. Needs no libtorch.

#include <string>
#include <vector>

#include "comm/mesh_shape.h"
#include "shard/options.h"

namespace fsdp::shard {

/// The mesh axes over which a strategy cuts units, and those over which it replicates them.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy);
std::vector<comm::MeshAxis> replicate_axes(util::Named<Strategy> strategy);
/// shard_axes() for marks: context only where sequences are cut.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy, const comm::MeshShape& mesh);

/// Over how many ranks a unit is cut, and how many replicas it has.
struct GroupSizes {
  int shards = 1;
  int replicas = 1;
  bool operator==(const GroupSizes&) const = default;
};
GroupSizes group_sizes(const comm::MeshShape& mesh, util::Named<Strategy> strategy);

/// Numbers of the queues in which units with these groups are gathered and reduced: what has the same number
/// runs in order. Groups of as many ranks are the same group, since one strategy's axes are among another's.
inline size_t gather_queue(const GroupSizes& groups) {
  return 2 * static_cast<size_t>(groups.shards > 1 ? groups.shards : groups.replicas);
}
inline size_t reduction_queue(const GroupSizes& groups, bool reduce_scatter_group) {
  return gather_queue(groups) + (reduce_scatter_group && groups.shards > 1 ? 1 : 0);
}

/// Another number, of what waits for no queue.
inline constexpr size_t kNoQueue = 1;

/// For people: "units sharded over data (4), replicated over dcn (2)".
std::string describe_groups(const comm::MeshShape& mesh, util::Named<Strategy> strategy);

}  // namespace fsdp::shard
