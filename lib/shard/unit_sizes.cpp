#include "shard/unit_sizes.h"

#include <algorithm>

#include "shard/option_conflicts.h"
#include "shard/strategy.h"

namespace fsdp::shard {

void take_options(const UnitOptions& options, UnitSizes& sizes) {
  sizes.param_dtype = options.storage.param_dtype;
  sizes.reduce_dtype = options.storage.reduce_dtype;
}

void take_layout(const UnitLayout& layout, UnitSizes& sizes) {
  sizes.numel = layout.numel();
  sizes.shard_numel = layout.shard_numel();
  sizes.gathered_numel = layout.gathered_numel();
  sizes.unsharded_numel = layout.unsharded_numel();
  sizes.gathers_in_place = layout.gathers_in_place();
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const ParameterPlace& place = layout.parameters()[i];
    sizes.parameters.push_back(
        {.name = place.name, .shape = place.shape, .shard_numel = layout.local_range(i, 0).columns.numel()});
  }
}

std::vector<UnitSizes> unit_sizes(const nn::ModelOutline& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh, const UnitDecisions& decisions) {
  require_no_option_conflicts(options);
  std::vector<UnitSizes> all;
  for (const UnitChoice& choice : choose_units(model, options, decisions)) {
    UnitSizes& sizes = all.emplace_back();
    sizes.name = choice.name;
    sizes.is_root = choice.is_root();
    sizes.groups = group_sizes(mesh, choice.replicated ? Strategy::kNoShard : options.strategy);
    const UnitOptions unit = unit_options(options, choice.keep_float32, mesh.world_size());
    take_options(unit, sizes);
    std::vector<UnitLayout::Parameter> parameters;
    sizes.has_trainable_parameters = false;
    for (const UnitChoice::Parameter& chosen : choice.parameters) {
      const nn::OutlineParameter& parameter = model.parameters[chosen.index];
      parameters.push_back({parameter.names.front(), parameter.shape, chosen.shard_dimension});
      sizes.has_trainable_parameters = sizes.has_trainable_parameters || parameter.requires_grad;
    }
    take_layout(*make_layout(unit.storage.layout, parameters, sizes.groups.shards), sizes);
    sizes.shard_is_unsharded =
        sizes.groups.shards == 1 && sizes.param_dtype == c10::ScalarType::Float && !options.cpu_offload;
  }
  return all;
}

}  // namespace fsdp::shard
