#pragma once

// The communicators of a rank's units.

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/api/coded_communicator.h"
#include "comm/api/communicator.h"
#include "comm/api/mesh.h"
#include "shard/engine/unit_storage.h"
#include "shard/units/group_sizes.h"
#include "shard/units/link_choice.h"
#include "shard/units/unit_options.h"

namespace fsdp::shard {

/// The groups in which a rank communicates; shard/units/group_sizes.h says which ranks they have.
struct ProcessGroups {
  std::shared_ptr<comm::Communicator> world;
  std::shared_ptr<comm::Communicator> shard;  ///< the ranks over which each unit is cut for its passes
  /// The same ranks, for the reduce-scatters of gradients: `shard`, or with reduce_scatter_group a
  /// communicator with a queue of its own.
  std::shared_ptr<comm::Communicator> reduce_scatter;
  std::shared_ptr<comm::Communicator> replicate;  ///< the ranks with the same shard; null: this one only
  /// The ranks that divide the shard of a pass among themselves; null: it is not divided.
  std::shared_ptr<comm::Communicator> slices = nullptr;
  /// The same ranks for collectives of passes that are coded on their links (shard/units/link_choice.h): the
  /// gathers and reductions among shards, and those across. Null: exact, in the groups above.
  struct Coded {
    std::shared_ptr<comm::CodedCommunicator> gather, reduce, gather_across, reduce_across;
  } coded{};
  int summed = 1;  ///< ranks over which gradients are summed; over the others the mean is taken

  GroupSizes sizes() const;
  /// Parts of a slice's shard follow each other.
  ShardPlace place() const;
  /// The groups in which passes gather and reduce.
  comm::Communicator& gathering() const { return coded.gather ? *coded.gather : *shard; }
  comm::Communicator& gathering_across() const {
    return coded.gather_across ? *coded.gather_across : *slices;
  }
  comm::Communicator& reducing() const { return coded.reduce ? *coded.reduce : *reduce_scatter; }
  /// The group of the second part of a reduction; null: there is none.
  comm::Communicator* across() const {
    if (coded.reduce_across) return coded.reduce_across.get();
    return slices ? slices.get() : replicate.get();
  }

  // The two functions below are collective. With slices each takes two collectives, of which the one between
  // slices moves the fewest bytes that it can. `whole` is [place().world_size * n].

  /// Fills `whole`, in which this rank has written its own part.
  void gather(const at::Tensor& whole, const comm::CallSite& site) const;
  /// output [n] = the sum of this rank's part of `whole`.
  void reduce(const at::Tensor& output, const at::Tensor& whole, const comm::CallSite& site) const;

  int replicas() const { return replicate ? replicate->world_size() : 1; }
  int replica_rank() const { return replicate ? replicate->rank() : 0; }
  /// The divisor that makes the sum over all ranks of a unit a mean.
  double divisor() const { return static_cast<double>(place().world_size) * replicas() / summed; }
};

/// The groups for a strategy; reduce-scatters share the communicator of all-gathers. Not collective.
ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy,
                             util::Named<HybridOptimizer> optimizer = HybridOptimizer::kReplicated);

/// The groups of units by their options.
class GroupsOfUnits {
 public:
  GroupsOfUnits(const comm::Mesh& mesh, bool reduce_scatter_group)
      : mesh_(mesh), reduce_scatter_group_(reduce_scatter_group) {}

  /// Collective with reduce_scatter_group, and where some ranks of the axis model hold the same part.
  ProcessGroups of(const UnitOptions& options);

 private:
  /// The groups whose links are coded. One decorator for each unit, which keeps the errors of its codes.
  ProcessGroups::Coded coded(const ProcessGroups& groups, const UnitOptions& options) const;
  /// The ranks along `axes`, and the ranks of the axis model with the same part.
  std::shared_ptr<comm::Communicator> replicas(std::vector<comm::MeshAxis> axes, int holders);

  const comm::Mesh& mesh_;
  bool reduce_scatter_group_;
  std::map<const comm::Communicator*, std::shared_ptr<comm::Communicator>> duplicates_;
  std::map<std::pair<std::vector<comm::MeshAxis>, int>, std::shared_ptr<comm::Communicator>> holders_;
};

}  // namespace fsdp::shard
