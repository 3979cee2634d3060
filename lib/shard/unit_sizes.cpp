#include "shard/unit_sizes.h"

#include <cmath>
#include <utility>

#include "shard/option_conflicts.h"

namespace fsdp::shard {
namespace {

/// For float16 sums: half of the division before the sum and half after keeps both from leaving its range.
double predivide_factor(const ShardOptions& options, c10::ScalarType reduce_dtype, int ranks) {
  if (options.gradient_predivide_factor > 0) return options.gradient_predivide_factor;
  if (reduce_dtype != c10::ScalarType::Half) return 1;
  return std::exp2(std::round(std::log2(ranks) / 2));
}

}  // namespace

UnitOptions unit_options(const ShardOptions& options, bool keep_float32, int ranks) {
  const MixedPrecisionOptions& precision = options.mixed_precision;
  UnitOptions result;
  if (!keep_float32) {
    result.storage.param_storage = util::scalar_type(options.param_storage);
    result.storage.param_dtype = util::scalar_type(precision.param_dtype);
    result.storage.reduce_dtype = util::scalar_type(precision.reduce_dtype);
  }
  result.storage.layout = options.layout;
  result.storage.keep_low_precision_grads = precision.keep_low_precision_grads;
  result.storage.cpu_offload = options.cpu_offload;
  result.storage.move_grads_to_cpu = options.move_grads_to_cpu;
  result.gradient_predivide_factor = predivide_factor(options, result.storage.reduce_dtype, ranks);
  return result;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  all_gathers += other.all_gathers;
  all_gather_bytes += other.all_gather_bytes;
  reduce_scatters += other.reduce_scatters;
  reduce_scatter_bytes += other.reduce_scatter_bytes;
  all_reduces += other.all_reduces;
  all_reduce_bytes += other.all_reduce_bytes;
  return *this;
}

Traffic Traffic::operator-(const Traffic& other) const {
  return {all_gathers - other.all_gathers,         all_gather_bytes - other.all_gather_bytes,
          reduce_scatters - other.reduce_scatters, reduce_scatter_bytes - other.reduce_scatter_bytes,
          all_reduces - other.all_reduces,         all_reduce_bytes - other.all_reduce_bytes};
}

UnitSizes sizes_of_unit(std::string name, const StorageOptions& options, const UnitLayout& layout,
                        const GroupSizes& groups) {
  UnitSizes sizes{.name = std::move(name),
                  .numel = layout.numel(),
                  .shard_numel = layout.shard_numel(),
                  .gathered_numel = layout.gathered_numel(),
                  .unsharded_numel = layout.unsharded_numel(),
                  .param_storage = options.param_storage,
                  .param_dtype = options.param_dtype,
                  .reduce_dtype = options.reduce_dtype,
                  .groups = groups,
                  .parameters = {},
                  .gathers_in_place = layout.gathers_in_place(),
                  .shard_is_unsharded = groups.shards == 1 && options.param_dtype == options.param_storage &&
                                        !options.cpu_offload};
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const ParameterPlace& place = layout.parameters()[i];
    sizes.parameters.push_back(
        {.name = place.name, .shape = place.shape, .shard_numel = layout.local_range(i, 0).columns.numel()});
  }
  return sizes;
}

std::vector<UnitSizes> unit_sizes(const nn::ModelOutline& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh, const UnitDecisions& decisions) {
  require_no_option_conflicts(options);
  std::vector<UnitSizes> all;
  for (const UnitChoice& choice : choose_units(model, options, decisions)) {
    bool is_trainable = false;
    std::vector<UnitLayout::Parameter> parameters;
    for (const UnitChoice::Parameter& chosen : choice.parameters) {
      const nn::OutlineParameter& parameter = model.parameters[chosen.index];
      parameters.push_back({parameter.names.front(), parameter.shape, chosen.shard_dimension});
      is_trainable = is_trainable || parameter.requires_grad;
    }
    const StorageOptions storage = unit_options(options, choice.keep_float32, mesh.world_size()).storage;
    const GroupSizes groups = group_sizes(mesh, choice.replicated ? Strategy::kNoShard : options.strategy);
    UnitSizes& sizes = all.emplace_back(
        sizes_of_unit(choice.name, storage, *make_layout(storage.layout, parameters, groups.shards), groups));
    sizes.is_root = choice.is_root();
    sizes.has_trainable_parameters = is_trainable;
  }
  return all;
}

}  // namespace fsdp::shard
