#include "shard/units/unit_collectives.h"

namespace fsdp::shard {
namespace {

using Operation = UnitCollective::Operation;
using Among = UnitCollective::Among;

/// Bytes of a part on its links, from its bytes in memory.
int64_t on_links(comm::LinkType type, int64_t bytes, int64_t element) {
  return comm::link_bytes(type, bytes / element, element);
}

std::vector<UnitCollective> of_reduction(const UnitSizes& unit, bool reduce_scatter_group, bool in_slice) {
  std::vector<UnitCollective> all;
  const size_t queue = reduction_queue(unit.groups, reduce_scatter_group);
  const int64_t element = unit.reduce_element();
  if (unit.is_cut()) {
    all.push_back({Operation::kReduceScatter, Among::kShards,
                   on_links(unit.links.reduce, unit.reduce_payload_bytes(), element), queue,
                   unit.reduce_payload_bytes()});
  }
  if (in_slice) return all;
  if (unit.has_slices()) {
    all.push_back({Operation::kReduceScatter, Among::kSlices,
                   on_links(unit.links.reduce_across, unit.result_bytes(), element), kQueueAcross,
                   unit.result_bytes()});
    return all;
  }
  if (unit.groups.replicas == 1) return all;
  const size_t across = unit.is_cut() ? kQueueAcross : queue;
  if (unit.options.storage.sums_by_sample) {
    const int64_t slots = unit.slot_payload_bytes();
    all.push_back({Operation::kReduceScatter, Among::kReplicas, slots, across, slots});
    all.push_back({Operation::kAllGather, Among::kReplicas, slots, across, slots});
  } else {
    const int64_t bytes = unit.reduce_payload_bytes();
    all.push_back({Operation::kAllReduce, Among::kReplicas,
                   comm::all_reduce_link_bytes(unit.links.reduce_across, bytes / element, element,
                                               unit.groups.replicas),
                   across, bytes});
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
      return {{Operation::kAllGather, Among::kSlices,
               on_links(unit.links.gather_across, unit.slice_gather_payload_bytes(),
                        util::element_size(unit.options.storage.slice_dtype())),
               kQueueAcross, unit.slice_gather_payload_bytes()}};
    case Command::Action::kGather:
      if (!unit.is_cut()) return {};
      return {{Operation::kAllGather, Among::kShards,
               on_links(unit.links.gather, unit.gather_payload_bytes(), unit.param_element()),
               gather_queue(unit.groups), unit.gather_payload_bytes()}};
    case Command::Action::kReduce:
    case Command::Action::kReduceInSlice:
      return of_reduction(unit, reduce_scatter_group, command == Command::Action::kReduceInSlice);
    default:
      return {};
  }
}

}  // namespace fsdp::shard
