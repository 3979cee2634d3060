#include "checkpoint/state_slices.h"

namespace fsdp::checkpoint {
namespace {

/// What this replica gives of a segment: parts that differ by one element at most. A segment of several rows
/// is in one piece only as a whole: the replicas take turns at these.
util::ColumnRange replicas_part(const shard::Segment& segment, size_t index,
                                const shard::ProcessGroups& groups) {
  const int64_t replica = groups.replica_rank(), replicas = groups.replicas();
  util::ColumnRange part = segment.range;
  if (part.rows > 1) {
    if (static_cast<int64_t>(index) % replicas != replica) part.end = part.begin;
    return part;
  }
  const auto [begin, length] = std::pair(part.begin, part.length());
  return {begin + length * replica / replicas, begin + length * (replica + 1) / replicas};
}

}  // namespace

std::vector<shard::TensorSlice> state_slices(const shard::Engine& engine, const optim::Optimizer& optimizer,
                                             SlicePurpose purpose) {
  std::vector<shard::TensorSlice> slices;
  const auto add = [&](const std::string& prefix, const shard::Segment& segment, const at::Tensor& part) {
    const auto index = static_cast<size_t>(&segment - engine.segments().data());
    const util::ColumnRange range =
        purpose == SlicePurpose::kSave ? replicas_part(segment, index, engine.units()[segment.unit]->groups())
                                       : segment.range;
    const int64_t offset = range.rows * (range.begin - segment.range.begin);
    slices.push_back({prefix + segment.name, segment.shape, range, part.narrow(0, offset, range.numel())});
  };
  for (const shard::Segment& segment : engine.segments()) {
    const at::Tensor& shard = engine.units()[segment.unit]->storage().shard();
    add("model/", segment, shard.narrow(0, segment.shard_offset, segment.numel()));
  }
  for (const optim::StateKind& state : optimizer.states()) {
    for (const shard::Segment& segment : engine.segments()) {
      if (!segment.requires_grad) continue;
      if (!state.covers(optim::treatment_of(optimizer.options(), segment.name, segment.shape).matrix))
        continue;
      const int64_t end = segment.shard_offset + segment.numel();
      add("optimizer/" + state.name + "/", segment,
          optimizer.state_of(state.name, segment.unit, segment.shard_offset, end));
    }
  }
  return slices;
}

}  // namespace fsdp::checkpoint
