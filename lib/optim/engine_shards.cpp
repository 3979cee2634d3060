#include "optim/engine_shards.h"

namespace fsdp::optim {

std::vector<FlatParameter> flat_parameters(const shard::Engine& engine, const OptimizerOptions& options) {
  std::vector<FlatParameter> parameters;
  for (const auto& unit : engine.units()) parameters.push_back({unit->name(), unit->storage().shard(), {}});
  for (const shard::Segment& segment : engine.segments()) {
    if (!segment.requires_grad) continue;
    FlatParameter& parameter = parameters[segment.unit];
    const Treatment treatment = treatment_of(options, segment.name, segment.shape);
    parameter.tensors.push_back(
        {segment.name, segment.shape, treatment, segment.range, segment.shard_offset});
    if (segment.numel() == 0) continue;
    parameter.ranges.push_back({segment.shard_offset, segment.shard_offset + segment.numel(), treatment});
  }
  return parameters;
}

std::vector<at::Tensor> shard_gradients(const shard::Engine& engine) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : engine.units()) gradients.push_back(unit->storage().shard_gradient());
  return gradients;
}

ShardedMatrices::ShardedMatrices(const shard::Engine& engine, const OptimizerOptions& options)
    : engine_(engine), exchange_(engine, [&options](const shard::Segment& segment) {
        return segment.requires_grad && treatment_of(options, segment.name, segment.shape).matrix;
      }) {}

void ShardedMatrices::add_up(size_t parameter, const at::Tensor& sums) {
  const shard::Unit& unit = *engine_.units().at(parameter);
  const shard::ProcessGroups& groups = unit.groups();
  if (groups.place().world_size == 1 && groups.replicas() == 1) return;
  // Replicas hold the same parts. One counts and the others take its result, so that they stay the same even
  // where their processors sum in different orders.
  if (groups.replica_rank() != 0) sums.zero_();
  engine_.communicator()
      .all_reduce(sums, comm::ReduceOp::kSum, {.unit = unit.name(), .pass = "optimizer"})
      ->wait();
}

}  // namespace fsdp::optim
