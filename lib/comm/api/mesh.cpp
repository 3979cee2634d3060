#include "comm/api/mesh.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "base/util/text.h"

namespace fsdp::comm {
namespace {

std::string name_of(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> names;
  for (MeshAxis axis : axes) names.emplace_back(comm::name_of(axis));
  return names.empty() ? "alone" : util::join(names, " x ");
}

/// The options with what all ranks take for the ranks of a host. On hosts with different numbers of ranks it
/// is the least number, so that no group across hosts passes for one inside a host. Collective if there is a
/// number.
MeshOptions agreed(MeshOptions options, Communicator& world) {
  if (options.ranks_of_host == 0 || world.world_size() == 1) return options;
  const at::Tensor least = at::full({1}, -options.ranks_of_host, at::kLong);
  world.all_reduce(least, ReduceOp::kMax, {.unit = "ranks of each host"})->wait();
  options.ranks_of_host = -least.item<int64_t>();
  return options;
}

}  // namespace

Mesh::Mesh(const MeshOptions& options, std::shared_ptr<Communicator> world)
    : shape_(resolve_mesh(agreed(options, *world), world->world_size())),
      world_(std::move(world)),
      coordinate_(shape_.coordinate_of(world_->rank())) {
  using enum MeshAxis;
  for (std::vector<MeshAxis> axes : std::vector<std::vector<MeshAxis>>{
           {}, {kDcn}, {kData}, {kContext}, {kDcn, kData}, {kData, kContext}, {kDcn, kData, kContext}}) {
    for (const bool with_model : {false, true}) {
      if (with_model) axes.push_back(kModel);
      const std::vector<MeshAxis> key = effective(axes);
      if (groups_.contains(key)) continue;
      groups_[key] = world_->subgroup(name_of(key), shape_.group_of(world_->rank(), key));
    }
  }
  context_ = group({kContext});
  if (context_ == group({kData, kContext})) context_ = context_->duplicate("context");
  model_ = group({kModel})->duplicate("model");
}

std::vector<MeshAxis> Mesh::effective(std::vector<MeshAxis> axes) const {
  std::erase_if(axes, [this](MeshAxis axis) { return shape_.along(axis) == 1; });
  std::ranges::sort(axes);
  return axes;
}

const std::shared_ptr<Communicator>& Mesh::group(std::vector<MeshAxis> axes) const {
  const auto found = groups_.find(effective(axes));
  FSDP_CHECK(found != groups_.end(), "a mesh has no group over ", name_of(axes));
  return found->second;
}

}  // namespace fsdp::comm
