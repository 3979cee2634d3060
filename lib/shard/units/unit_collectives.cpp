#include "shard/units/unit_collectives.h"

namespace fsdp::shard {
namespace {

using Operation = UnitCollective::Operation;
using Among = UnitCollective::Among;

std::vector<UnitCollective> of_reduction(const UnitSizes& unit, bool reduce_scatter_group, bool in_slice) {
  std::vector<UnitCollective> all;
  const size_t queue = reduction_queue(unit.groups, reduce_scatter_group);
  if (unit.is_cut())
    all.push_back({Operation::kReduceScatter, Among::kShards, unit.reduce_payload_bytes(), queue});
  if (in_slice) return all;
  if (unit.has_slices()) {
    all.push_back({Operation::kReduceScatter, Among::kSlices, unit.result_bytes(), kQueueAcross});
    return all;
  }
  if (unit.groups.replicas == 1) return all;
  const size_t across = unit.is_cut() ? kQueueAcross : queue;
  if (unit.options.storage.sums_by_sample) {
    const int64_t slots = unit.slot_payload_bytes();
    all.push_back({Operation::kReduceScatter, Among::kReplicas, slots, across});
    all.push_back({Operation::kAllGather, Among::kReplicas, slots, across});
  } else {
    all.push_back({Operation::kAllReduce, Among::kReplicas, unit.reduce_payload_bytes(), across});
  }
  return all;
}

}  // namespace

Traffic UnitCollective::traffic(int64_t times) const {
  switch (kind) {
    case Operation::kAllGather:
      return {.all_gathers = times, .all_gather_bytes = times * bytes};
    case Operation::kReduceScatter:
      return {.reduce_scatters = times, .reduce_scatter_bytes = times * bytes};
    case Operation::kAllReduce:
      return {.all_reduces = times, .all_reduce_bytes = times * bytes};
  }
  return {};
}

std::vector<UnitCollective> collectives_of(Command::Action command, const UnitSizes& unit,
                                           bool reduce_scatter_group) {
  switch (command) {
    case Command::Action::kGatherSlices:
      return {{Operation::kAllGather, Among::kSlices, unit.slice_gather_payload_bytes(), kQueueAcross}};
    case Command::Action::kGather:
      if (!unit.is_cut()) return {};
      return {
          {Operation::kAllGather, Among::kShards, unit.gather_payload_bytes(), gather_queue(unit.groups)}};
    case Command::Action::kReduce:
    case Command::Action::kReduceInSlice:
      return of_reduction(unit, reduce_scatter_group, command == Command::Action::kReduceInSlice);
    default:
      return {};
  }
}

}  // namespace fsdp::shard
