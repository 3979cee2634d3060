#include "train/state_slices.h"

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

std::vector<checkpoint::TensorSlice> state_slices(const shard::Engine& engine,
                                                  const optim::Optimizer& optimizer, SlicePurpose purpose) {
  std::vector<checkpoint::TensorSlice> slices;
  auto add = [&](const std::string& prefix, const shard::Segment& segment, const at::Tensor& flat) {
    bool gives = purpose == SlicePurpose::kLoad || engine.units()[segment.unit]->groups().replica_rank() == 0;
    int64_t end = gives ? segment.end : segment.begin;
    slices.push_back({.name = prefix + segment.name,
                      .shape = segment.shape,
                      .begin = segment.begin,
                      .end = end,
                      .data = flat.narrow(0, segment.shard_offset, segment.rows * (end - segment.begin)),
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
