#include "shard/process_groups.h"

#include <vector>

#include "comm/single_communicator.h"
#include "shard/strategy.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

using comm::MeshAxis;
using Axes = std::vector<MeshAxis>;

const Axes kBothAxes = {MeshAxis::kDcn, MeshAxis::kData};

Axes shard_axes(const std::string& strategy) {
  if (shards_nothing(strategy)) return {};
  return is_hybrid(strategy) ? Axes{MeshAxis::kData} : kBothAxes;
}

Axes replicate_axes(const std::string& strategy) {
  if (shards_nothing(strategy)) return kBothAxes;
  return is_hybrid(strategy) ? Axes{MeshAxis::kDcn} : Axes{};
}

std::shared_ptr<comm::Communicator> group_over(const comm::Mesh& mesh, const Axes& axes) {
  if (axes.empty()) return std::make_shared<comm::SingleCommunicator>();
  return mesh.group(axes);
}

/// "over dcn x data (8)", of the axes with more than one rank.
std::string over(const comm::MeshShape& mesh, const Axes& axes) {
  std::string names;
  for (MeshAxis axis : axes) {
    if (mesh.along(axis) > 1) names += util::concat(names.empty() ? "" : " x ", comm::name_of(axis));
  }
  return util::concat("over ", names, " (", mesh.along(axes), ")");
}

}  // namespace

ProcessGroups process_groups(const comm::Mesh& mesh, const std::string& strategy) {
  ProcessGroups groups{mesh.world(), group_over(mesh, shard_axes(strategy)), nullptr};
  Axes axes = replicate_axes(strategy);
  if (mesh.shape().along(axes) > 1) groups.replicate = mesh.group(axes);
  return groups;
}

ProcessGroups replicated_groups(const comm::Mesh& mesh) { return process_groups(mesh, kNoShard); }

GroupSizes group_sizes(const comm::MeshShape& mesh, const std::string& strategy) {
  return {.shards = mesh.along(shard_axes(strategy)), .replicas = mesh.along(replicate_axes(strategy))};
}

std::string describe_groups(const comm::MeshShape& mesh, const std::string& strategy) {
  GroupSizes sizes = group_sizes(mesh, strategy);
  if (sizes.shards * sizes.replicas == 1) return "units whole on the only rank";
  std::string text = "units ";
  if (sizes.shards > 1) text += util::concat("sharded ", over(mesh, shard_axes(strategy)));
  if (sizes.shards > 1 && sizes.replicas > 1) text += ", ";
  if (sizes.replicas > 1) text += util::concat("replicated ", over(mesh, replicate_axes(strategy)));
  return text;
}

}  // namespace fsdp::shard
