#include "shard/unit_sizes.h"

#include <algorithm>

#include "shard/option_conflicts.h"
#include "shard/strategy.h"
#include "shard/unit_layout.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {
namespace {

void take_options(const UnitOptions& options, UnitSizes& sizes) {
  sizes.param_dtype = options.storage.param_dtype;
  sizes.reduce_dtype = options.storage.reduce_dtype;
  sizes.reshard_after_forward = options.reshard_after_forward;
}

void take_layout(const UnitLayout& layout, UnitSizes& sizes) {
  sizes.numel = layout.numel();
  sizes.shard_numel = layout.shard_numel();
  sizes.gathered_numel = layout.gathered_numel();
  sizes.unsharded_numel = layout.unsharded_numel();
  sizes.gathers_in_place = layout.gathers_in_place();
}

}  // namespace

std::vector<UnitSizes> unit_sizes(const Engine& engine) {
  std::vector<UnitSizes> all;
  for (const auto& unit : engine.units()) {
    const UnitStorage& storage = unit->storage();
    UnitSizes& sizes = all.emplace_back();
    sizes.name = unit->name();
    take_options(unit->options(), sizes);
    take_layout(storage.layout(), sizes);
    sizes.groups = {.shards = unit->groups().shard->world_size(), .replicas = unit->groups().replicas()};
    sizes.is_root = engine.is_root(*unit);
    sizes.has_trainable_parameters = storage.has_trainable_parameters();
    sizes.shard_is_unsharded = storage.shard_is_unsharded();
    sizes.input_is_differentiable = engine.input_is_differentiable(*unit);
  }
  return all;
}

std::vector<UnitSizes> unit_sizes(nn::Stage& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh) {
  require_no_option_conflicts(options);
  std::vector<UnitPlan> plans = plan_units(model, options);
  std::vector<UnitSizes> all;
  for (const UnitPlan& plan : plans) {
    UnitSizes& sizes = all.emplace_back();
    sizes.name = plan.name;
    sizes.is_root = plan.stage == plans.front().stage;
    sizes.groups = group_sizes(mesh, plan.replicated ? kNoShard : options.strategy);
    UnitOptions unit = unit_options(options, plan, sizes.is_root, mesh.world_size());
    take_options(unit, sizes);
    std::vector<UnitLayout::Parameter> shapes;
    for (const NamedParameter& parameter : plan.parameters) {
      shapes.push_back({parameter.name, parameter.tensor.sizes().vec(), parameter.shard_dimension});
    }
    take_layout(*make_layout(unit.storage.layout, shapes, sizes.groups.shards), sizes);
    sizes.has_trainable_parameters =
        std::any_of(plan.parameters.begin(), plan.parameters.end(),
                    [](const NamedParameter& parameter) { return parameter.tensor.requires_grad(); });
    sizes.shard_is_unsharded =
        sizes.groups.shards == 1 && sizes.param_dtype == at::kFloat && !options.cpu_offload;
  }
  return all;
}

}  // namespace fsdp::shard
