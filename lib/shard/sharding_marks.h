#pragma once

// Tensors marked as sharded on a mesh, as mark_sharding() of PyTorch/XLA's SPMD does it. There one process
// sees global tensors and a compiler cuts them; here every rank runs the program, so a mark says what a
// rank's tensor is of the global one:
//
//   a parameter    stays as it is until spmd_fully_shard(), which cuts it on the marked dimension
//   an activation  that is replicated (no mark) is really cut: what comes back is this rank's part, and what
//                  is computed from it is this rank's part of the computation
//
// Marks are not inherited: the sum of two marked tensors has none.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/mesh.h"
#include "shard/partition_spec.h"

namespace fsdp::shard {

/// What a rank's tensor is part of.
struct Sharding {
  comm::MeshShape mesh;
  PartitionSpec spec;
  std::vector<int64_t> global_shape;
};

/// For a parameter (a leaf that requires a gradient): marks it and returns it. For an activation that all
/// ranks hold alike: returns this rank's part, marked. In backward the gradient of the whole activation is
/// made of the ranks' parts, as of a loss that is the mean of the ranks' losses: collective over the axes of
/// the spec. Throws Error(kUsage) for a spec that does not fit, for a dimension that does not divide, with
/// the numbers, and for an activation that is marked already with another spec; one marked alike is returned
/// as it is.
at::Tensor mark_sharding(const at::Tensor& tensor, const comm::Mesh& mesh, const PartitionSpec& spec);

/// Marks a parameter whether or not it requires a gradient.
at::Tensor mark_parameter(const at::Tensor& parameter, const comm::Mesh& mesh, const PartitionSpec& spec);

/// Says that `local` is this rank's part already, such as the rows that its data loader gave it; all ranks'
/// parts are of one shape. Returns it.
at::Tensor mark_local_shard(const at::Tensor& local, const comm::Mesh& mesh, const PartitionSpec& spec);

/// Nothing for a tensor without a mark.
std::optional<Sharding> sharding_of(const at::Tensor& tensor);

/// The global tensor of which a marked activation is a part; the tensor itself if it has no mark. Collective
/// over the axes of its spec. Not differentiable.
at::Tensor full_tensor(const at::Tensor& tensor, const comm::Mesh& mesh);

}  // namespace fsdp::shard
