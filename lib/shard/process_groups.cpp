#include "shard/process_groups.h"

#include <vector>

#include "comm/communicator.h"
#include "shard/strategy.h"

namespace fsdp::shard {
namespace {

using Axes = std::vector<comm::MeshAxis>;

std::shared_ptr<comm::Communicator> group_over(const comm::Mesh& mesh, const Axes& axes) {
  if (axes.empty()) return std::make_shared<comm::SingleCommunicator>();
  return mesh.group(axes);
}

}  // namespace

ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy) {
  ProcessGroups groups{mesh.world(), group_over(mesh, shard_axes(strategy)), nullptr};
  Axes axes = replicate_axes(strategy);
  if (mesh.shape().along(axes) > 1) groups.replicate = mesh.group(axes);
  return groups;
}

ProcessGroups replicated_groups(const comm::Mesh& mesh) { return process_groups(mesh, Strategy::kNoShard); }

}  // namespace fsdp::shard
