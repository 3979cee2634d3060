#pragma once

// Mesh: the ranks of a run on named axes, and the communicators along them.

#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mesh_shape.h"
#include "comm/options.h"

namespace fsdp::comm {

/// The groups over dcn, over data, over model and over dcn x data, each a communicator with a queue of its
/// own, so that collectives along different axes run beside each other. A group of one rank is a
/// SingleCommunicator, a group of all ranks the world's communicator itself.
class Mesh {
 public:
  /// Collective over `world`. Throws Error(kUsage) when the product of the axes is not the world size (see
  /// resolve_mesh()) and for a model axis of more than 1, which nothing serves yet.
  Mesh(const MeshOptions& options, std::shared_ptr<Communicator> world);

  const MeshShape& shape() const { return shape_; }
  /// Of this rank.
  const MeshCoordinate& coordinate() const { return coordinate_; }

  /// All ranks of the run, numbered as the mesh numbers them.
  const std::shared_ptr<Communicator>& world() const { return world_; }

  /// The ranks that share this rank's place on every axis but the named ones, ascending, so that a rank of
  /// the group is its place along a single axis. Axes: one of them, or {kDcn, kData}. Not collective.
  const std::shared_ptr<Communicator>& group(std::vector<MeshAxis> axes) const;

 private:
  MeshShape shape_;
  std::shared_ptr<Communicator> world_;
  MeshCoordinate coordinate_;
  std::map<std::vector<MeshAxis>, std::shared_ptr<Communicator>> groups_;
};

}  // namespace fsdp::comm
