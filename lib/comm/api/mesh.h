#pragma once

// Mesh: the ranks of a run on named axes, and the communicators along them.

#include <map>
#include <memory>
#include <vector>

#include "comm/api/communicator.h"
#include "comm/options/mesh_shape.h"
#include "comm/options/options.h"

namespace fsdp::comm {

/// The groups over each axis, over data x context, dcn x data, dcn x data x context, over no axis (this rank
/// alone), and over each of these and model. Axes of one rank do not count: groups of the same ranks are one
/// communicator. Each group has a separate queue, so collectives along different axes run concurrently.
/// The group of one rank is Communicator::subgroup() of this rank, the group of all ranks the world's
/// communicator itself. On GPUs a group without collectives of tensors there has no communicator of NCCL.
class Mesh {
 public:
  /// Collective over `world`. Throws Error(kUsage) when the product of the axes is not the world size (see
  /// resolve_mesh()).
  Mesh(const MeshOptions& options, std::shared_ptr<Communicator> world);

  const MeshShape& shape() const { return shape_; }
  /// This rank's place.
  const MeshCoordinate& coordinate() const { return coordinate_; }

  /// All ranks of the run.
  const std::shared_ptr<Communicator>& world() const { return world_; }

  /// The ranks that have this rank's place on every axis except `axes`, ascending: along one axis, a rank's
  /// number in the group is its place on the axis. `axes` is one of the combinations above. Not collective.
  const std::shared_ptr<Communicator>& group(std::vector<MeshAxis> axes) const;

  /// The groups over context and over model for layers, which wait for collectives in the middle of their
  /// compute: they share no queue with groups over which units are sharded or replicated.
  const std::shared_ptr<Communicator>& context() const { return context_; }
  const std::shared_ptr<Communicator>& model() const { return model_; }

 private:
  /// `axes` in the order of the mesh, without axes of one rank.
  std::vector<MeshAxis> effective(std::vector<MeshAxis> axes) const;

  MeshShape shape_;
  std::shared_ptr<Communicator> world_;
  MeshCoordinate coordinate_;
  std::map<std::vector<MeshAxis>, std::shared_ptr<Communicator>> groups_;
  std::shared_ptr<Communicator> context_, model_;
};

}  // namespace fsdp::comm
