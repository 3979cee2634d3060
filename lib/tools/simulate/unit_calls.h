#pragma once

// UnitCalls: the collectives of a step as the engine issues them (shard/units/unit_collectives.h), and the
// places of their groups' ranks.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "shard/units/unit_collectives.h"
#include "tools/simulate/cluster.h"
#include "tools/simulate/collective_cost.h"
#include "tools/simulate/step_program.h"

namespace fsdp::simulate {

struct IssuedCall {
  size_t queue = 0;  ///< collectives of one queue run in order
  CollectiveCall call = {};
  /// A copy between the device and host memory takes so long, and is no collective.
  std::optional<double> copy_seconds = std::nullopt;
  std::string kind = {};  ///< "all-gathers in forward"
  // As in comm/events/trace_event.h.
  std::string unit = {}, pass = {};

  /// The name in a trace: "all_gather".
  const char* op() const;
};

/// The group of `ranks` ranks that are `stride` apart.
RankGroup group_of(const Cluster& cluster, int ranks, int stride, bool is_between_slices = false);

class UnitCalls {
 public:
  /// `cluster` must outlive the calls.
  UnitCalls(const Cluster& cluster, bool reduce_scatter_group)
      : cluster_(cluster), reduce_scatter_group_(reduce_scatter_group) {}

  /// The collectives of a command for this unit: each begins when the one before it has ended.
  std::vector<IssuedCall> of_command(const shard::Command& command, const shard::UnitSizes& unit) const;

  /// A collective inside a layer, over the axes context and model.
  IssuedCall exchange_in_layer(double bytes, const std::string& pass) const;
  /// A copy between the device and host memory.
  IssuedCall copy(double bytes) const;
  /// A collective of all ranks; `operation` is of the kind kCollective.
  IssuedCall of_all_ranks(const Operation& operation) const;

 private:
  RankGroup shard_group(const shard::UnitSizes& unit) const;
  RankGroup replica_group(const shard::UnitSizes& unit, int ranks) const;

  const Cluster& cluster_;
  const bool reduce_scatter_group_;
};

}  // namespace fsdp::simulate
