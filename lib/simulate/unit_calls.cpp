#include "simulate/unit_calls.h"

#include <algorithm>
#include <cstdint>

#include "shard/group_sizes.h"

namespace fsdp::simulate {

using shard::UnitSizes;

namespace {

/// Queues: between replicas, and of layers; no queue of shards has these numbers.
constexpr size_t kReplicas = 0, kLayers = 1;

}  // namespace

const char* IssuedCall::op() const {
  switch (call.kind) {
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kExchange:
      break;
  }
  return "shift";
}

/// Of ranks that are `stride` apart.
Group UnitCalls::group(int ranks, int stride, bool is_between_slices) const {
  Group group{.ranks = ranks, .ranks_of_host = ranks, .is_between_slices = is_between_slices};
  if (cluster_.ranks_of_host > 0) {
    const int64_t here = std::max<int64_t>(1, cluster_.ranks_of_host / std::max(1, stride));
    group.ranks_of_host = static_cast<int>(std::min<int64_t>(ranks, here));
  }
  return group;
}

/// Neighbours are on the axis model, over which no unit is cut.
Group UnitCalls::shard_group(const UnitSizes& unit) const {
  const comm::MeshShape& mesh = cluster_.mesh;
  return group(unit.groups.shards, mesh.model, unit.groups.shards > mesh.data * mesh.context);
}

/// Of replicas or slices: the counterparts of other slices, or all ranks with the same parameters.
Group UnitCalls::replica_group(const UnitSizes& unit, int ranks) const {
  const comm::MeshShape& mesh = cluster_.mesh;
  const int holders = unit.options.holders;
  if (mesh.dcn > 1 && ranks == mesh.dcn * holders) return group(ranks, mesh.world_size() / mesh.dcn, true);
  return group(ranks, holders > 1 ? 1 : mesh.model, ranks > mesh.data * mesh.context * holders);
}

IssuedCall UnitCalls::slice_gather(const UnitSizes& unit) const {
  return {.queue = kReplicas,
          .call = {.kind = CollectiveKind::kAllGather,
                   .bytes = static_cast<double>(unit.slice_gather_payload_bytes()),
                   .group = replica_group(unit, unit.groups.slices)},
          .kind = "between slices",
          .unit = unit.name,
          .pass = shard::kBetweenSlices};
}

IssuedCall UnitCalls::gather(const UnitSizes& unit, const std::string& pass) const {
  return {.queue = gather_queue(unit.groups),
          .call = {.kind = CollectiveKind::kAllGather,
                   .bytes = static_cast<double>(unit.gather_payload_bytes()),
                   .group = shard_group(unit)},
          .kind = "all-gathers in " + pass,
          .unit = unit.name,
          .pass = pass};
}

UnitCalls::Reduction UnitCalls::reduction(const UnitSizes& unit) const {
  const auto call = [&](size_t queue, CollectiveKind kind, int64_t bytes, const Group& group) {
    return IssuedCall{.queue = queue,
                      .call = {.kind = kind, .bytes = static_cast<double>(bytes), .group = group},
                      .kind = group.is_between_slices ? "between slices" : "reductions",
                      .unit = unit.name,
                      .pass = "backward"};
  };
  Reduction reduction;
  const size_t queue = reduction_queue(unit.groups, reduce_scatter_group_);
  if (unit.is_cut()) {
    reduction.first =
        call(queue, CollectiveKind::kReduceScatter, unit.reduce_payload_bytes(), shard_group(unit));
  }
  const int replicas = unit.groups.replicas;
  if (unit.has_slices()) {
    reduction.second = call(kReplicas, CollectiveKind::kReduceScatter, unit.result_bytes(),
                            replica_group(unit, unit.groups.slices));
  } else if (replicas > 1) {
    const int64_t bytes = unit.options.storage.sums_by_sample ? unit.slot_payload_bytes() * replicas
                                                              : unit.reduce_payload_bytes();
    reduction.second = call(unit.is_cut() ? kReplicas : queue, CollectiveKind::kAllReduce, bytes,
                            replica_group(unit, replicas));
  }
  return reduction;
}

IssuedCall UnitCalls::exchange_in_layer(double bytes, const std::string& pass) const {
  return {.queue = kLayers,
          .call = {.kind = CollectiveKind::kExchange,
                   .bytes = bytes,
                   .group = group(cluster_.mesh.context * cluster_.mesh.model, /*stride=*/1)},
          .kind = "layers",
          .unit = "layers",
          .pass = pass};
}

IssuedCall UnitCalls::of_all_ranks(const Operation& operation) const {
  const int world = cluster_.mesh.world_size();
  return {.queue = shard::gather_queue({.shards = world}),
          .call = {.kind = operation.collective,
                   .bytes = operation.bytes,
                   .group = group(world, /*stride=*/1, cluster_.mesh.dcn > 1)},
          .kind = operation.what,
          .unit = operation.what,
          .pass = "optimizer"};
}

}  // namespace fsdp::simulate
