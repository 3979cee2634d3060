#pragma once

/// \file
/// The ranks of a run on named axes: `dcn` (replicas, over the slow network) x `data` (shards) x `model` (1).
/// fully_shard() takes a mesh where the hybrid strategies need one; without one all ranks are on `data`.
///
/// Collective: the constructor. Mesh::group() is not.
///
/// Errors: Error(kUsage) where the product of the axes is not the world size.
///
/// Lifetime: a mesh shares the ownership of its communicators; engines keep what they need of it.
///
/// \code{.cpp}
/// std::shared_ptr<fsdp::Engine> shard_within_nodes(torch::nn::Module& model,
///                                                  std::shared_ptr<fsdp::Communicator> world, int64_t nodes) {
///   fsdp::Mesh mesh({.dcn = nodes, .data = -1}, std::move(world));       // -1: the rest of the ranks
///   return fsdp::fully_shard(model, {.strategy = fsdp::Strategy::kHybridShard}, mesh);
/// }
/// \endcode

#include "comm/mesh.h"
#include "comm/options.h"

namespace fsdp {

using comm::Mesh;
using comm::MeshAxis;
using comm::MeshOptions;

}  // namespace fsdp
