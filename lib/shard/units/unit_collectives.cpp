#include "shard/units/unit_collectives.h"

namespace fsdp::shard {
namespace {

using Kind = UnitCollective::Kind;
using Among = UnitCollective::Among;

std::vector<UnitCollective> of_reduction(const UnitSizes& unit, bool reduce_scatter_group, bool in_slice) {
  std::vector<UnitCollective> all;
  const size_t queue = reduction_queue(unit.groups, reduce_scatter_group);
  if (unit.is_cut())
    all.push_back({Kind::kReduceScatter, Among::kShards, unit.reduce_payload_bytes(), queue});
  if (in_slice) return all;
  if (unit.has_slices()) {
    all.push_back({Kind::kReduceScatter, Among::kSlices, unit.result_bytes(), kQueueAcross});
    return all;
  }
  if (unit.groups.replicas == 1) return all;
  const size_t across = unit.is_cut() ? kQueueAcross : queue;
  if (unit.options.storage.sums_by_sample) {
    const int64_t slots = unit.slot_payload_bytes();
    all.push_back({Kind::kReduceScatter, Among::kReplicas, slots, across});
    all.push_back({Kind::kAllGather, Among::kReplicas, slots, across});
  } else {
    all.push_back({Kind::kAllReduce, Among::kReplicas, unit.reduce_payload_bytes(), across});
  }
  return all;
}

}  // namespace

Traffic UnitCollective::traffic(int64_t times) const {
  switch (kind) {
    case Kind::kAllGather:
      return {.all_gathers = times, .all_gather_bytes = times * bytes};
    case Kind::kReduceScatter:
      return {.reduce_scatters = times, .reduce_scatter_bytes = times * bytes};
    case Kind::kAllReduce:
      return {.all_reduces = times, .all_reduce_bytes = times * bytes};
  }
  return {};
}

std::vector<UnitCollective> collectives_of(Command::Kind command, const UnitSizes& unit,
                                           bool reduce_scatter_group) {
  switch (command) {
    case Command::Kind::kGatherSlices:
      return {{Kind::kAllGather, Among::kSlices, unit.slice_gather_payload_bytes(), kQueueAcross}};
    case Command::Kind::kGather:
      if (!unit.is_cut()) return {};
      return {{Kind::kAllGather, Among::kShards, unit.gather_payload_bytes(), gather_queue(unit.groups)}};
    case Command::Kind::kReduce:
    case Command::Kind::kReduceInSlice:
      return of_reduction(unit, reduce_scatter_group, command == Command::Kind::kReduceInSlice);
    default:
      return {};
  }
}

}  // namespace fsdp::shard
