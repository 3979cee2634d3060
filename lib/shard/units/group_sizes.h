#pragma once

// Which ranks share a unit.
//
//   strategy                          units are cut over    and replicated over
//   full_shard, shard_grad_op         dcn x data x context  -
//   hybrid_shard, hybrid_shard_zero2  data x context        dcn
//   no_shard                          -                     dcn x data x context
//
// The ranks of a context group compute with all parameters, on different tokens, as those of data do. The ranks of a
// model group have parts of the parameters, each part a tensor of its own; a part that several of them hold, such as
// a norm, is replicated over these too.
//
// Hybrid sharding keeps all-gathers within a slice and sends only the shards' gradients over the slow network
// between slices, once a step (Zhao et al.: PyTorch FSDP, VLDB 2023, section 3.2.2). Units of replicated
// parameters follow the last line under every strategy.
//
// With hybrid_optimizer = "global", the shard of a rank in its slice is cut once more, over dcn, and nothing is
// replicated: a rank updates 1 / (dcn x data) of the unit. What it gathers from is its slice's shard, which it
// keeps beside that part and which an all-gather over dcn brings up to date once a step; a reduce-scatter over
// dcn takes the place of the all-reduce. (MiCS has the replicated form: Zhang et al., VLDB 2022; the second
// partition of ZeRO++, Wang et al. 2023, is a copy of the same kind.) Needs no libtorch.

#include <string>
#include <vector>

#include "comm/options/mesh_shape.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// The mesh axes over which a strategy cuts units for its passes, those over which it replicates them, and those
/// over which it cuts the shards of passes once more for the optimizer.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy);
std::vector<comm::MeshAxis> replicate_axes(util::Named<Strategy> strategy,
                                           util::Named<HybridOptimizer> optimizer);
std::vector<comm::MeshAxis> slice_axes(util::Named<Strategy> strategy,
                                       util::Named<HybridOptimizer> optimizer);
/// shard_axes() for marks: context only where sequences are cut.
std::vector<comm::MeshAxis> shard_axes(util::Named<Strategy> strategy, const comm::MeshShape& mesh);

/// Over how many ranks a unit is cut for its passes, how many replicas it has, and over how many slices a shard of
/// a pass is cut once more.
struct GroupSizes {
  int shards = 1;
  int replicas = 1;
  int slices = 1;
  /// Over how many ranks gradients, master weights and optimizer state are cut.
  int parts() const { return shards * slices; }
  bool operator==(const GroupSizes&) const = default;
};
/// `holders`: ranks of the axis model that have the same part of the parameters.
GroupSizes group_sizes(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                       util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated,
                       int holders = 1);

/// Numbers of the queues in which units with these groups are gathered and reduced: what has the same number
/// runs in order. Groups of as many ranks are the same group, since one strategy's axes are among another's.
inline size_t gather_queue(const GroupSizes& groups) {
  return 2 * static_cast<size_t>(groups.shards > 1 ? groups.shards : groups.replicas * groups.slices);
}
inline size_t reduction_queue(const GroupSizes& groups, bool reduce_scatter_group) {
  return gather_queue(groups) + (reduce_scatter_group && groups.shards > 1 ? 1 : 0);
}

/// Other numbers: of what follows between replicas or slices of a unit that is cut, and of what waits for no queue.
inline constexpr size_t kQueueAcross = 0, kNoQueue = 1;

/// For people: "units sharded over data (4), replicated over dcn (2)".
std::string describe_groups(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                            util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated);

}  // namespace fsdp::shard
