#include "state/optim/engine_shards.h"

#include "base/util/error.h"
#include "shard/engine/engine.h"

namespace fsdp::optim {
namespace {

void require_leaves_that_torch_updates(const shard::Unit& unit) {
  const shard::UnitStorage& storage = unit.storage();
  if (storage.shard().scalar_type() != at::kFloat) {
    fail(ErrorKind::kUsage, "fsdp::parameters(): expected shards in float32; found ",
         c10::toString(storage.shard().scalar_type()), " in unit ", unit.name(),
         "; optimizers of torch::optim round each update to nearest, so take make_optimizer(), or leave "
         "fsdp.param_storage out");
  }
  if (storage.shard_is_offloaded() && !storage.gradient_is_offloaded()) {
    fail(ErrorKind::kUsage,
         "fsdp::parameters(): expected gradients where the shards are; found the shard of unit ", unit.name(),
         " in host memory and its gradient on the device; set fsdp.move_grads_to_cpu too");
  }
}

}  // namespace

std::vector<FlatParameter> flat_parameters(const shard::Engine& engine, const OptimizerOptions& options) {
  std::vector<FlatParameter> parameters;
  for (const auto& unit : engine.units()) {
    parameters.push_back({.name = unit->name(),
                          .value = unit->storage().shard(),
                          .ranges = {},
                          .copy = unit->storage().low_precision_shard(),
                          .device = engine.communicator().device()});
  }
  for (const auto& segments : engine.segments_by_parameter()) {
    const shard::Segment& first = segments.front();
    if (!first.requires_grad) continue;
    FlatParameter& parameter = parameters[first.unit];
    const Treatment treatment = treatment_of(options, first.name, first.shape);
    parameter.tensors.push_back({first.name, first.shape, treatment, {}, first.shard_offset});
    FlatParameter::Tensor& tensor = parameter.tensors.back();
    for (const shard::Segment& segment : segments) tensor.parts.push_back(segment.range);
    if (tensor.numel() == 0) continue;
    parameter.ranges.push_back({tensor.begin, tensor.end(), treatment});
  }
  return parameters;
}

std::vector<at::Tensor> shard_gradients(const shard::Engine& engine) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : engine.units()) gradients.push_back(unit->storage().shard_gradient());
  return gradients;
}

std::vector<shard::NamedTensor> named_parameters(const shard::Engine& engine) {
  std::vector<shard::NamedTensor> parameters;
  for (const auto& unit : engine.units()) {
    if (!unit->storage().has_trainable_parameters()) continue;
    require_leaves_that_torch_updates(*unit);
    for (const shard::ShardLeaf& leaf : unit->storage().leaves()) {
      parameters.push_back({unit->storage().parameters()[leaf.parameter].name, leaf.tensor});
    }
  }
  return parameters;
}

std::vector<at::Tensor> parameters(const shard::Engine& engine) {
  std::vector<at::Tensor> tensors;
  for (auto& [name, tensor] : named_parameters(engine)) tensors.push_back(std::move(tensor));
  return tensors;
}

ShardedMatrices::ShardedMatrices(const shard::Engine& engine, const OptimizerOptions& options)
    : engine_(engine), exchange_(engine, [&options](const shard::Segment& segment) {
        return segment.requires_grad && treatment_of(options, segment.name, segment.shape).matrix;
      }) {}

void ShardedMatrices::add_up(size_t parameter, const at::Tensor& sums) {
  const shard::Unit& unit = *engine_.units().at(parameter);
  const shard::ProcessGroups& groups = unit.groups();
  if (groups.place().world_size == 1 && groups.replicas() == 1 && engine_.mesh().model == 1) return;
  // Replicas hold the same parts. One replica computes the sums and the others copy its result, so that
  // replicas stay equal even if their processors sum in different orders.
  if (groups.replica_rank() != 0) sums.zero_();
  engine_.communicator()
      .all_reduce(sums, comm::ReduceOp::kSum, {.unit = unit.name(), .pass = "optimizer"})
      ->wait();
}

}  // namespace fsdp::optim
