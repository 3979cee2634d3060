#include "train/state_slices.h"

#include <tuple>
#include <utility>

#include "util/name_patterns.h"

namespace fsdp::train {

std::vector<optim::FlatParameter> flat_parameters(const shard::Engine& engine,
                                                  const std::vector<std::string>& no_decay) {
  std::vector<optim::FlatParameter> parameters;
  for (const auto& unit : engine.units()) parameters.push_back({unit->name(), unit->storage().shard(), {}});
  for (const shard::Segment& segment : engine.segments()) {
    if (!segment.requires_grad || segment.begin == segment.end) continue;
    bool decay = !util::matches_any(segment.name, no_decay);
    int64_t begin = segment.shard_offset, end = begin + segment.numel();
    auto& ranges = parameters[segment.unit].ranges;
    // Neighbours that are treated alike are one pass for the optimizer.
    if (!ranges.empty() && ranges.back().end == begin && ranges.back().decay == decay) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end, decay});
    }
  }
  return parameters;
}

namespace {

/// What this replica gives of a segment: parts that differ by one element at most. A segment of several rows
/// is in one piece only as a whole: the replicas take turns at these.
std::pair<int64_t, int64_t> replicas_part(const shard::Segment& segment, size_t index,
                                          const shard::ProcessGroups& groups) {
  int64_t numel = segment.end - segment.begin, replica = groups.replica_rank(), replicas = groups.replicas();
  if (segment.rows > 1) {
    bool mine = static_cast<int64_t>(index) % replicas == replica;
    return {segment.begin, mine ? segment.end : segment.begin};
  }
  return {segment.begin + numel * replica / replicas, segment.begin + numel * (replica + 1) / replicas};
}

}  // namespace

std::vector<checkpoint::TensorSlice> state_slices(const shard::Engine& engine,
                                                  const optim::Optimizer& optimizer, SlicePurpose purpose) {
  std::vector<checkpoint::TensorSlice> slices;
  auto add = [&](const std::string& prefix, const shard::Segment& segment, const at::Tensor& flat) {
    auto index = static_cast<size_t>(&segment - engine.segments().data());
    auto [begin, end] = std::pair(segment.begin, segment.end);
    if (purpose == SlicePurpose::kSave) {
      std::tie(begin, end) = replicas_part(segment, index, engine.units()[segment.unit]->groups());
    }
    slices.push_back({.name = prefix + segment.name,
                      .shape = segment.shape,
                      .begin = begin,
                      .end = end,
                      .data = flat.narrow(0, segment.shard_offset + segment.rows * (begin - segment.begin),
                                          segment.rows * (end - begin)),
                      .rows = segment.rows});
  };
  for (const shard::Segment& segment : engine.segments()) {
    add("model/", segment, engine.units()[segment.unit]->storage().shard());
  }
  for (const std::string& state : optimizer.state_names()) {
    for (const shard::Segment& segment : engine.segments()) {
      if (segment.requires_grad)
        add("optimizer/" + state + "/", segment, optimizer.state(state, segment.unit));
    }
  }
  return slices;
}

}  // namespace fsdp::train
