#include <c10/util/accumulate.h>

#include <algorithm>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/units/group_sizes.h"

namespace fsdp::shard {

std::string spmd_debug(const Engine& engine,
                       const std::vector<std::pair<std::string, at::Tensor>>& activations) {
  const int rank = engine.communicator().rank();
  std::string text;
  const auto add = [&](const std::string& name, at::IntArrayRef global, at::IntArrayRef local,
                       const std::string& spec, c10::ScalarType dtype) {
    text += concat("rank ", rank, "  ", name, "  global ", global, "  local ", local, "  ", spec, "  ",
                   util::dtype_name(dtype), "\n");
  };
  const auto spec_text = [](const PartitionSpec& spec, size_t dimensions) {
    std::vector<PartitionSpec::Axes> all(dimensions);
    for (size_t i = 0; i < dimensions; ++i) all[i] = spec.axes(i);
    return to_string(PartitionSpec(std::move(all)));
  };
  const ShardOptions& options = engine.options();
  for (const auto& segments : engine.segments_by_parameter()) {
    const Segment& segment = segments.front();
    const Unit& unit = *engine.units()[segment.unit];
    PartitionSpec::Axes axes = shard_axes(unit.options().strategy, engine.mesh());
    // Parts of a slice's shard follow each other, so dcn is the inner axis.
    for (comm::MeshAxis axis : slice_axes(unit.options().strategy, unit.options().hybrid_optimizer)) {
      axes.push_back(axis);
    }
    const NamedParameter& parameter = unit.storage().parameters().at(segment.parameter);
    std::vector<int64_t> local = parameter.part ? parameter.part->shape : segment.shape;
    std::vector<PartitionSpec::Axes> cut(local.size());
    for (size_t i = 0; i < local.size(); ++i) {
      if (local[i] != segment.shape[i]) cut[i] = {comm::MeshAxis::kModel};
    }
    std::string flat;
    if (options.layout == Layout::kFlat) {
      flat = " of the flat unit";
      if (local != segment.shape) flat += " of parts " + to_string(PartitionSpec(cut));
      local = {numel_of(segments)};
      cut = {axes};
    } else if (!axes.empty() && !local.empty()) {
      // The part is cut again, so the axes of shards are the inner ones.
      const auto dimension = static_cast<size_t>(parameter.shard_dimension);
      cut[dimension].insert(cut[dimension].end(), axes.begin(), axes.end());
      local[dimension] = 1;
      local[dimension] = numel_of(segments) / std::max<int64_t>(1, c10::multiply_integers(local));
    }
    const PartitionSpec spec(std::move(cut));
    add(segment.name, segment.shape, local, spec_text(spec, local.size()) + flat,
        unit.options().storage.param_dtype);
  }
  for (const auto& [name, tensor] : activations) {
    const auto sharding = sharding_of(tensor);
    add(name, sharding ? at::IntArrayRef(sharding->global_shape) : tensor.sizes(), tensor.sizes(),
        sharding ? spec_text(sharding->spec, tensor.sizes().size()) : "(no mark)", tensor.scalar_type());
  }
  return text;
}

}  // namespace fsdp::shard
