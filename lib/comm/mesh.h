#pragma once

// Mesh: the ranks of a run on named axes, and the communicators along them.

#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mesh_shape.h"
#include "comm/options.h"

namespace fsdp::comm {

/// The groups over dcn, over data, over model, over dcn x data and over no axis (this rank alone). Each is a
/// communicator with a separate queue, so collectives along different axes run concurrently. That of one rank
/// is Communicator::subgroup() of this rank, that of all ranks the world's communicator itself.
class Mesh {
 public:
  /// Collective over `world`. Throws Error(kUsage) when the product of the axes is not the world size (see
  /// resolve_mesh()) and for a model axis of more than 1, which is not supported yet.
  Mesh(const MeshOptions& options, std::shared_ptr<Communicator> world);

  const MeshShape& shape() const { return shape_; }
  /// This rank's place.
  const MeshCoordinate& coordinate() const { return coordinate_; }

  /// All ranks of the run.
  const std::shared_ptr<Communicator>& world() const { return world_; }

  /// The ranks that have this rank's place on every axis except `axes`, ascending: along one axis, a rank's
  /// number in the group is its place on the axis. `axes` is none, one axis or {kDcn, kData}. Not collective.
  const std::shared_ptr<Communicator>& group(std::vector<MeshAxis> axes) const;

 private:
  MeshShape shape_;
  std::shared_ptr<Communicator> world_;
  MeshCoordinate coordinate_;
  std::map<std::vector<MeshAxis>, std::shared_ptr<Communicator>> groups_;
};

}  // namespace fsdp::comm
