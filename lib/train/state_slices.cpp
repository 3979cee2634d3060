#include "train/state_slices.h"

#include <tuple>
#include <utility>

namespace fsdp::train {

std::vector<optim::FlatParameter> flat_parameters(const shard::Engine& engine,
                                                  const optim::OptimizerOptions& options) {
  std::vector<optim::FlatParameter> parameters;
  for (const auto& unit : engine.units()) parameters.push_back({unit->name(), unit->storage().shard(), {}});
  for (const shard::Segment& segment : engine.segments()) {
    if (!segment.requires_grad || segment.begin == segment.end) continue;
    parameters[segment.unit].ranges.push_back({segment.shard_offset, segment.shard_offset + segment.numel(),
                                               optim::treatment_of(options, segment.name, segment.shape)});
  }
  return parameters;
}

std::vector<at::Tensor> shard_gradients(const shard::Engine& engine) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : engine.units()) gradients.push_back(unit->storage().shard_gradient());
  return gradients;
}

ShardedMatrices::ShardedMatrices(const shard::Engine& engine, const optim::OptimizerOptions& options)
    : exchange_(engine, [&options](const shard::Segment& segment) {
        return segment.requires_grad && optim::treatment_of(options, segment.name, segment.shape).matrix;
      }) {}

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
  auto add = [&](const std::string& prefix, const shard::Segment& segment, const at::Tensor& part) {
    auto index = static_cast<size_t>(&segment - engine.segments().data());
    auto [begin, end] = std::pair(segment.begin, segment.end);
    if (purpose == SlicePurpose::kSave) {
      std::tie(begin, end) = replicas_part(segment, index, engine.units()[segment.unit]->groups());
    }
    slices.push_back(
        {.name = prefix + segment.name,
         .shape = segment.shape,
         .begin = begin,
         .end = end,
         .data = part.narrow(0, segment.rows * (begin - segment.begin), segment.rows * (end - begin)),
         .rows = segment.rows});
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

}  // namespace fsdp::train
