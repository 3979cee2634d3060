#include "shard/engine/process_groups.h"

#include <ATen/ops/empty.h>

namespace fsdp::shard {

ProcessGroups process_groups(const comm::Mesh& mesh, util::Named<Strategy> strategy,
                             util::Named<HybridOptimizer> optimizer) {
  const auto shard = mesh.group(shard_axes(strategy));
  const auto of_several = [&mesh](const std::vector<comm::MeshAxis>& axes) {
    return mesh.shape().along(axes) > 1 ? mesh.group(axes) : nullptr;
  };
  return {.world = mesh.world(),
          .shard = shard,
          .reduce_scatter = shard,
          .replicate = of_several(replicate_axes(strategy, optimizer)),
          .slices = of_several(slice_axes(strategy, optimizer))};
}

GroupSizes ProcessGroups::sizes() const {
  return {.shards = shard->world_size(), .replicas = replicas(), .slices = slices ? slices->world_size() : 1};
}

ShardPlace ProcessGroups::place() const {
  const GroupSizes groups = sizes();
  return {shard->rank() * groups.slices + (slices ? slices->rank() : 0), groups.parts(), groups.slices};
}

void ProcessGroups::gather(const at::Tensor& whole, const comm::CallSite& site) const {
  const int64_t n = whole.numel() / place().world_size, of_slice = n * place().slices;
  const at::Tensor part = whole.narrow(0, shard->rank() * of_slice, of_slice);
  if (slices) slices->all_gather(part, part.narrow(0, slices->rank() * n, n), site)->wait();
  shard->all_gather(whole, part, site)->wait();
}

void ProcessGroups::reduce(const at::Tensor& output, const at::Tensor& whole,
                           const comm::CallSite& site) const {
  if (!slices) return shard->reduce_scatter(output, whole, site)->wait();
  at::Tensor part = whole;
  if (shard->world_size() > 1) {
    part = at::empty({output.numel() * slices->world_size()}, whole.options());
    shard->reduce_scatter(part, whole, site)->wait();
  }
  slices->reduce_scatter(output, part, site)->wait();
}

ProcessGroups GroupsOfUnits::of(const UnitOptions& options) {
  ProcessGroups groups = process_groups(mesh_, options.strategy, options.hybrid_optimizer);
  if (options.holders > 1) {
    groups.replicate = replicas(replicate_axes(options.strategy, options.hybrid_optimizer), options.holders);
    if (options.shares_gradient) groups.summed = options.holders;
  }
  if (reduce_scatter_group_ && groups.shard->world_size() > 1) {
    auto& duplicate = duplicates_[groups.shard.get()];
    if (!duplicate) duplicate = groups.shard->duplicate("reduce_scatter");
    groups.reduce_scatter = duplicate;
  }
  groups.coded = coded(groups, options);
  return groups;
}

ProcessGroups::Coded GroupsOfUnits::coded(const ProcessGroups& groups, const UnitOptions& options) const {
  const LinkTypes types = link_types(options, mesh_.shape());
  const auto around = [&](const std::shared_ptr<comm::Communicator>& group, comm::LinkType type,
                          bool reduces) -> std::shared_ptr<comm::CodedCommunicator> {
    if (group == nullptr || group->world_size() == 1 || type == comm::LinkType::kExact) return nullptr;
    const bool keeps_errors = reduces && options.links.error_feedback;
    return std::make_shared<comm::CodedCommunicator>(group,
                                                     comm::LinkCoding{.type = type,
                                                                      .stochastic = reduces && !keeps_errors,
                                                                      .seed = options.links.seed,
                                                                      .error_feedback = keeps_errors},
                                                     groups.world->rank());
  };
  return {
      .gather = around(groups.shard, types.gather, false),
      .reduce = around(groups.reduce_scatter, types.reduce, true),
      .gather_across = around(groups.slices, types.gather_across, false),
      .reduce_across = around(groups.slices ? groups.slices : groups.replicate, types.reduce_across, true)};
}

std::shared_ptr<comm::Communicator> GroupsOfUnits::replicas(std::vector<comm::MeshAxis> axes, int holders) {
  axes.push_back(comm::MeshAxis::kModel);
  if (holders == mesh_.shape().model) return mesh_.group(axes);
  auto& group = holders_[{axes, holders}];
  if (group) return group;
  std::vector<int> ranks = mesh_.shape().group_of(mesh_.world()->rank(), axes);
  std::erase_if(ranks, [&](int rank) {
    return mesh_.shape().coordinate_of(rank).model / holders != mesh_.coordinate().model / holders;
  });
  return group = mesh_.world()->subgroup("holders", ranks);
}

}  // namespace fsdp::shard
