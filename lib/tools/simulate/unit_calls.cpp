#include "tools/simulate/unit_calls.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "shard/units/group_sizes.h"

namespace fsdp::simulate {

using shard::UnitSizes;

namespace {

/// Queues for layers and copies; queues of units have other numbers.
constexpr size_t kLayers = shard::kNoQueue, kCopies = shard::kNoQueue - 1;

CollectiveKind kind_of(shard::UnitCollective::Operation kind) {
  using Kind = shard::UnitCollective::Operation;
  return kind == Kind::kAllGather       ? CollectiveKind::kAllGather
         : kind == Kind::kReduceScatter ? CollectiveKind::kReduceScatter
                                        : CollectiveKind::kAllReduce;
}

}  // namespace

const char* IssuedCall::op() const {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "shift"};
  return kNames[static_cast<size_t>(call.kind)];
}

RankGroup group_of(const Cluster& cluster, int ranks, int stride, bool is_between_slices) {
  RankGroup group{.ranks = ranks, .ranks_of_host = ranks, .is_between_slices = is_between_slices};
  if (cluster.ranks_of_host > 0) {
    const int64_t here = std::max<int64_t>(1, cluster.ranks_of_host / std::max(1, stride));
    group.ranks_of_host = static_cast<int>(std::min<int64_t>(ranks, here));
  }
  return group;
}

/// The group over which a unit is cut. Neighbours are on the axis model, over which no unit is cut.
RankGroup UnitCalls::shard_group(const UnitSizes& unit) const {
  const comm::MeshShape& mesh = cluster_.mesh;
  return group_of(cluster_, unit.groups.shards, mesh.model, unit.groups.shards > mesh.data * mesh.context);
}

/// The group of a unit's replicas or slices: the counterparts in other slices, or all ranks with the same
/// parameters.
RankGroup UnitCalls::replica_group(const UnitSizes& unit, int ranks) const {
  const comm::MeshShape& mesh = cluster_.mesh;
  const int holders = unit.options.holders;
  if (mesh.dcn > 1 && ranks == mesh.dcn * holders)
    return group_of(cluster_, ranks, mesh.world_size() / mesh.dcn, true);
  return group_of(cluster_, ranks, holders > 1 ? 1 : mesh.model, ranks > mesh.data * mesh.context * holders);
}

std::vector<IssuedCall> UnitCalls::of_command(const shard::Command& command, const UnitSizes& unit) const {
  using Among = shard::UnitCollective::Among;
  const bool is_forward = command.pass == shard::Pass::kForward;
  std::vector<IssuedCall> calls;
  for (const shard::UnitCollective& each : collectives_of(command.kind, unit, reduce_scatter_group_)) {
    const RankGroup group = each.among == Among::kShards   ? shard_group(unit)
                            : each.among == Among::kSlices ? replica_group(unit, unit.groups.slices)
                                                           : replica_group(unit, unit.groups.replicas);
    std::string kind = "reductions", pass = is_forward ? "forward" : "backward";
    if (command.kind == shard::Command::Action::kGather) {
      kind = "all-gathers in " + pass;
    } else if (each.among == Among::kSlices || group.is_between_slices) {
      kind = "between slices";
    }
    if (command.kind == shard::Command::Action::kGatherSlices) pass = shard::kBetweenSlices;
    calls.push_back({.queue = each.queue,
                     .call = {.kind = kind_of(each.kind),
                              .bytes = static_cast<double>(each.bytes),
                              .group = group,
                              .uncoded_bytes =
                                  each.bytes == each.exact_bytes ? 0 : static_cast<double>(each.exact_bytes)},
                     .kind = std::move(kind),
                     .unit = unit.name,
                     .pass = std::move(pass)});
  }
  return calls;
}

IssuedCall UnitCalls::exchange_in_layer(double bytes, const std::string& pass) const {
  return {.queue = kLayers,
          .call = {.kind = CollectiveKind::kExchange,
                   .bytes = bytes,
                   .group = group_of(cluster_, cluster_.mesh.context * cluster_.mesh.model, /*stride=*/1)},
          .kind = "layers",
          .unit = "layers",
          .pass = pass};
}

IssuedCall UnitCalls::copy(double bytes) const {
  return {.queue = kCopies,
          .call = {.bytes = bytes},
          .copy_seconds = seconds_at_rate(bytes, cluster_.network.host_bytes_per_second),
          .kind = "copies to and from host memory"};
}

IssuedCall UnitCalls::of_all_ranks(const Operation& operation) const {
  const int world = cluster_.mesh.world_size();
  return {.queue = shard::gather_queue({.shards = world}),
          .call = {.kind = operation.collective,
                   .bytes = operation.bytes,
                   .group = group_of(cluster_, world, /*stride=*/1, cluster_.mesh.dcn > 1)},
          .kind = operation.what,
          .unit = operation.what,
          .pass = "optimizer"};
}

}  // namespace fsdp::simulate
