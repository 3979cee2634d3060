#pragma once

/// \file
/// A mesh of the ranks of a run with named axes: `dcn` (replicas, over the slow network) x `data` (shards) x
/// `context` (parts of sequences) x `model` (parts of layers, <fsdp/parallelize.h>). Hybrid strategies of
/// fully_shard() need a mesh; without a mesh all ranks are on `data`.
///
/// Collective: the constructor. Mesh::group() is not.
///
/// Errors: Error(kUsage) if the product of the axes is not the world size.
///
/// Lifetime: a mesh shares ownership of its communicators, as engines do; it need not outlive the engines.
///
/// \code{.cpp}
/// std::shared_ptr<fsdp::Engine> shard_within_nodes(torch::nn::Module& model,
///                                                  std::shared_ptr<fsdp::Communicator> world,
///                                                  int64_t nodes) {
///   fsdp::Mesh mesh({.dcn = nodes, .data = -1}, std::move(world));       // -1: all remaining ranks
///   return fsdp::fully_shard(model, {.strategy = fsdp::Strategy::kHybridShard}, mesh);
/// }
/// \endcode

#include "comm/api/mesh.h"
#include "comm/options/options.h"

namespace fsdp {

using comm::Mesh;
using comm::MeshAxis;
using comm::MeshOptions;

}  // namespace fsdp
