#include "shard/units/group_sizes.h"

#include "base/util/error.h"

namespace fsdp::shard {
namespace {

using comm::MeshAxis;
using Axes = std::vector<MeshAxis>;

const Axes kAllAxes = {MeshAxis::kDcn, MeshAxis::kData, MeshAxis::kContext};

/// "over dcn x data (8)", of the axes with more than one rank.
std::string over(const comm::MeshShape& mesh, const Axes& axes) {
  std::string names;
  for (MeshAxis axis : axes) {
    if (mesh.along(axis) > 1) names += concat(names.empty() ? "" : " x ", comm::name_of(axis));
  }
  return concat("over ", names, " (", mesh.along(axes), ")");
}

}  // namespace

Axes shard_axes(util::Named<Strategy> strategy) {
  if (shards_nothing(strategy)) return {};
  return is_hybrid(strategy) ? Axes{MeshAxis::kData, MeshAxis::kContext} : kAllAxes;
}

Axes replicate_axes(util::Named<Strategy> strategy, util::Named<HybridOptimizer> optimizer) {
  if (shards_nothing(strategy)) return kAllAxes;
  return is_hybrid(strategy) && optimizer == HybridOptimizer::kReplicated ? Axes{MeshAxis::kDcn} : Axes{};
}

Axes slice_axes(util::Named<Strategy> strategy, util::Named<HybridOptimizer> optimizer) {
  return is_hybrid(strategy) && optimizer == HybridOptimizer::kGlobal ? Axes{MeshAxis::kDcn} : Axes{};
}

Axes shard_axes(util::Named<Strategy> strategy, const comm::MeshShape& mesh) {
  Axes axes = shard_axes(strategy);
  if (mesh.context == 1) std::erase(axes, MeshAxis::kContext);
  return axes;
}

GroupSizes group_sizes(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                       util::Named<HybridOptimizer> optimizer, int holders) {
  return {.shards = mesh.along(shard_axes(strategy)),
          .replicas = mesh.along(replicate_axes(strategy, optimizer)) * holders,
          .slices = mesh.along(slice_axes(strategy, optimizer))};
}

std::string describe_groups(const comm::MeshShape& mesh, util::Named<Strategy> strategy,
                            util::Named<HybridOptimizer> optimizer) {
  const GroupSizes sizes = group_sizes(mesh, strategy, optimizer);
  if (sizes.parts() * sizes.replicas == 1) {
    return mesh.model > 1 ? "units on one rank of each place on model" : "units whole on the only rank";
  }
  if (sizes.slices > 1) {
    return concat(
        "units ",
        sizes.shards > 1 ? concat("sharded ", over(mesh, shard_axes(strategy))) : "whole on every rank",
        ", gradients, master weights and optimizer state sharded ", over(mesh, kAllAxes));
  }
  std::string text = "units ";
  if (sizes.shards > 1) text += concat("sharded ", over(mesh, shard_axes(strategy)));
  if (sizes.shards > 1 && sizes.replicas > 1) text += ", ";
  if (sizes.replicas > 1) text += concat("replicated ", over(mesh, replicate_axes(strategy, optimizer)));
  return text;
}

}  // namespace fsdp::shard
