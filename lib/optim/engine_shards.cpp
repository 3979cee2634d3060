#include "optim/engine_shards.h"

namespace fsdp::optim {

std::vector<FlatParameter> flat_parameters(const shard::Engine& engine, const OptimizerOptions& options) {
  std::vector<FlatParameter> parameters;
  for (const auto& unit : engine.units()) parameters.push_back({unit->name(), unit->storage().shard(), {}});
  for (const shard::Segment& segment : engine.segments()) {
    if (!segment.requires_grad || segment.numel() == 0) continue;
    parameters[segment.unit].ranges.push_back({segment.shard_offset, segment.shard_offset + segment.numel(),
                                               treatment_of(options, segment.name, segment.shape)});
  }
  return parameters;
}

std::vector<at::Tensor> shard_gradients(const shard::Engine& engine) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : engine.units()) gradients.push_back(unit->storage().shard_gradient());
  return gradients;
}

ShardedMatrices::ShardedMatrices(const shard::Engine& engine, const OptimizerOptions& options)
    : exchange_(engine, [&options](const shard::Segment& segment) {
        return segment.requires_grad && treatment_of(options, segment.name, segment.shape).matrix;
      }) {}

}  // namespace fsdp::optim
