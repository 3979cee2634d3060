#include "shard/units/unit_sizes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shard/units/option_conflicts.h"
#include "shard/units/sample_nodes.h"

namespace fsdp::shard {

int64_t Traffic::collectives() const { return all_gathers + reduce_scatters + all_reduces + shifts; }

int64_t Traffic::payload() const {
  return all_gather_bytes + reduce_scatter_bytes + all_reduce_bytes + shift_bytes;
}

Traffic& Traffic::operator+=(const Traffic& other) {
  for (const TrafficKind& kind : kTrafficKinds) {
    this->*kind.number += other.*kind.number;
    this->*kind.bytes += other.*kind.bytes;
  }
  return *this;
}

Traffic Traffic::operator-(const Traffic& other) const {
  Traffic difference = *this;
  for (const TrafficKind& kind : kTrafficKinds) {
    difference.*kind.number -= other.*kind.number;
    difference.*kind.bytes -= other.*kind.bytes;
  }
  return difference;
}

bool shard_is_unsharded(const StorageOptions& options, const UnitLayout& layout, const GroupSizes& groups) {
  const bool has_slices = groups.slices > 1;
  const bool is_kept_low = has_slices || options.keeps_low_precision_shard;
  return groups.shards == 1 && layout.gathers_in_place() && (has_slices || !options.cpu_offload) &&
         options.param_dtype == (is_kept_low ? options.slice_dtype() : options.param_storage);
}

int64_t UnitSizes::code_bytes() const {
  using comm::LinkType;
  const auto of = [](LinkType type, int64_t ranks, int64_t numel, bool reduces) {
    if (type == LinkType::kExact || ranks == 1) return int64_t{0};
    return (reduces ? 2 : 1) * ranks * comm::link_bytes(type, numel, 0) + (reduces ? 4 * numel : 0);
  };
  const int64_t part = slice_shard_numel(), across = std::max(groups.replicas, groups.slices);
  const int64_t part_across = (part + across - 1) / across;
  return std::max({of(links.gather, groups.shards, part, false), of(links.reduce, groups.shards, part, true),
                   of(links.gather_across, groups.slices, shard_numel, false),
                   of(links.reduce_across, across, part_across, true)});
}

int64_t UnitSizes::error_bytes() const {
  using comm::LinkType;
  if (!options.links.error_feedback || !has_trainable_parameters) return 0;
  const int64_t part = slice_shard_numel(), replicas = groups.replicas;
  int64_t numbers = links.reduce != LinkType::kExact && is_cut() ? groups.shards * part : 0;
  if (links.reduce_across != LinkType::kExact && has_slices()) numbers += part;
  if (links.reduce_across != LinkType::kExact && groups.slices == 1 && replicas > 1) {
    numbers += (replicas + 1) * ((part + replicas - 1) / replicas);
  }
  return 4 * numbers;
}

int64_t UnitSizes::slots_of_shards() const {
  if (!options.storage.sums_by_sample) return 1;
  return most_uses *
         std::ssize(sample_round({.ranks = groups.shards, .replicas = groups.replicas}, 0).inside);
}

int64_t UnitSizes::slots_of_replicas() const {
  if (!options.storage.sums_by_sample) return 1;
  return most_uses * std::ssize(sample_round({.ranks = groups.shards, .replicas = groups.replicas}, 0).all);
}

int64_t UnitSizes::slot_payload_bytes() const {
  return (slots_of_replicas() * shard_numel + groups.replicas - 1) / groups.replicas * reduce_element();
}

bool adds_before_all_reduce(const GroupSizes& groups, const StorageOptions& options) {
  return groups.replicas > 1 && groups.slices == 1 && !options.move_grads_to_cpu && !options.sums_by_sample;
}

UnitSizes sizes_of_unit(std::string name, const UnitOptions& options, const UnitLayout& layout,
                        const GroupSizes& groups, const LinkTypes& links) {
  UnitSizes sizes{.name = std::move(name),
                  .numel = layout.numel(),
                  .shard_numel = layout.shard_numel(),
                  .gathered_numel = layout.gathered_numel(),
                  .unsharded_numel = layout.unsharded_numel(),
                  .options = options,
                  .groups = groups,
                  .links = links,
                  .parameters = {},
                  .gathers_in_place = layout.gathers_in_place(),
                  .shard_is_unsharded = shard_is_unsharded(options.storage, layout, groups)};
  for (size_t i = 0; i < layout.parameters().size(); ++i) {
    const ParameterPlace& place = layout.parameters()[i];
    sizes.parameters.push_back({.name = place.name,
                                .shape = place.shape,
                                .shard_numel = layout.local_range(i, 0).columns.numel(),
                                .part_numel = place.numel});
  }
  return sizes;
}

std::vector<UnitSizes> unit_sizes(const nn::ModelOutline& model, const ShardOptions& options,
                                  const comm::MeshShape& mesh, const UnitDecisions& decisions) {
  require_no_option_conflicts(options);
  std::vector<UnitSizes> all;
  for (const UnitChoice& choice : choose_units(model, options, decisions)) {
    bool is_trainable = false;
    std::ptrdiff_t most_uses = 1;
    std::vector<UnitLayout::Parameter> parameters;
    for (const UnitChoice::Parameter& chosen : choice.parameters) {
      const nn::OutlineParameter& parameter = model.parameters[chosen.index];
      parameters.push_back({parameter.names.front(), parameter.shape, chosen.shard_dimension});
      is_trainable = is_trainable || parameter.requires_grad;
      most_uses = std::max(most_uses, std::ssize(parameter.names));
    }
    const GroupSizes groups =
        group_sizes(mesh, choice.options.strategy, choice.options.hybrid_optimizer, choice.options.holders);
    const auto layout = make_layout(choice.options.storage.layout, parameters, groups.parts());
    UnitSizes& sizes = all.emplace_back(
        sizes_of_unit(choice.name, choice.options, *layout, groups, link_types(choice.options, mesh)));
    sizes.is_root = choice.is_root();
    sizes.has_trainable_parameters = is_trainable;
    sizes.most_uses = most_uses;
    sizes.model_ranks = mesh.model;
    for (size_t i = 0; i < sizes.parameters.size(); ++i) {
      sizes.parameters[i].shape = model.parameters[choice.parameters[i].index].shape_of_whole();
    }
  }
  return all;
}

}  // namespace fsdp::shard
