#pragma once

// The ranks that share a unit.
//
//   strategy                          units are cut over    and replicated over
//   full_shard, shard_grad_op         dcn x data x context  -
//   hybrid_shard, hybrid_shard_zero2  data x context        dcn
//   no_shard                          -                     dcn x data x context
//
// The ranks of a context group compute with all parameters, on different tokens, as the ranks of a data group
// do. The ranks of a model group have parts of the parameters, each a tensor of its own. A part that several
// of them hold, such as a norm, is replicated over these ranks too.
//
// Hybrid sharding keeps all-gathers within a slice and sends only the shards' gradients over the slow network
// between slices, once a step (Zhao et al.: PyTorch FSDP, VLDB 2023, section 3.2.2). Units of replicated
// parameters follow the last line under every strategy.
//
// With hybrid_optimizer = "global", the shard of a rank in its slice is cut once more, over dcn, and nothing
// is replicated: a rank updates 1 / (dcn x data) of the unit. Gathers within the slice read the slice's
// shard, which a rank keeps in addition to its part. An all-gather over dcn updates that shard once a step,
// and a reduce-scatter over dcn replaces the all-reduce. (MiCS has the replicated form: Zhang et al., VLDB
// 2022; the second partition of ZeRO++, Wang et al. 2023, is a copy of the same kind.)

#include <string>
#include <vector>

#include "comm/options/mesh_shape.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// The mesh axes over which a strategy cuts units for forward and backward, replicates them, and cuts the
/// shards once more for the optimizer.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy);
std::vector<comm::MeshAxis> replicate_axes(util::Named<Strategy> strategy,
                                           util::Named<HybridOptimizer> optimizer);
std::vector<comm::MeshAxis> slice_axes(util::Named<Strategy> strategy,
                                       util::Named<HybridOptimizer> optimizer);
/// Returns shard_axes() for marks, with context only where sequences are cut.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy, const comm::MeshShape& mesh);

/// Numbers of ranks that share a unit.
struct GroupSizes {
  int shards = 1;    ///< ranks over which the unit is cut for forward and backward
  int replicas = 1;  ///< ranks that hold the same shard
  int slices = 1;    ///< ranks over which that shard is cut once more for the optimizer
  /// Number of ranks over which gradients, master weights and optimizer state are cut.
  int parts() const { return shards * slices; }
  bool operator==(const GroupSizes&) const = default;
};
/// `holders`: ranks of the axis model that have the same part of the parameters.
GroupSizes group_sizes(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                       util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated,
                       int holders = 1);

/// Numbers of the queues in which units with these groups are gathered and reduced. Operations of one queue
/// run in order. Groups with equally many ranks are the same group, because the axes of one strategy include
/// those of the other.
inline size_t gather_queue(const GroupSizes& groups) {
  return 2 * static_cast<size_t>(groups.shards > 1 ? groups.shards : groups.replicas * groups.slices);
}
inline size_t reduction_queue(const GroupSizes& groups, bool reduce_scatter_group) {
  return gather_queue(groups) + (reduce_scatter_group && groups.shards > 1 ? 1 : 0);
}

/// The queue of second collectives, over replicas or slices, and the number of operations that wait for no
/// queue.
inline constexpr size_t kQueueAcross = 0, kNoQueue = 1;

/// Describes the groups for a person: "units sharded over data (4), replicated over dcn (2)".
std::string describe_groups(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                            util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated);

}  // namespace fsdp::shard
