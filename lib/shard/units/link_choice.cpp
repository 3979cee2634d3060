#include "shard/units/link_choice.h"

#include <vector>

#include "shard/units/group_sizes.h"

namespace fsdp::shard {

using comm::LinkType;

LinkTypes link_types(const UnitOptions& unit, const comm::MeshShape& mesh) {
  const LinkOptions& links = unit.links;
  if (links.gather_dtype == LinkType::kExact && links.reduce_dtype == LinkType::kExact) return {};
  const auto is_coded = [&](const std::vector<comm::MeshAxis>& axes) {
    return links.coded == comm::CodedLinks::kAll || mesh.crosses_hosts(axes);
  };
  std::vector<comm::MeshAxis> across = slice_axes(unit.strategy, unit.hybrid_optimizer);
  if (across.empty()) across = replicate_axes(unit.strategy, unit.hybrid_optimizer);
  if (unit.holders > 1) across.push_back(comm::MeshAxis::kModel);
  const bool on_shards = is_coded(shard_axes(unit.strategy)), on_across = is_coded(across);
  // Quantized weights are gathered as bytes.
  const LinkType gather =
      unit.storage.param_dtype == c10::ScalarType::Byte ? LinkType::kExact : links.gather_dtype;
  return {.gather = on_shards ? gather : LinkType::kExact,
          .reduce = on_shards ? links.reduce_dtype : LinkType::kExact,
          .gather_across = on_across ? gather : LinkType::kExact,
          .reduce_across = on_across ? links.reduce_dtype : LinkType::kExact};
}

}  // namespace fsdp::shard
