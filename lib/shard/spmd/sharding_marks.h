#pragma once

// Tensors marked as sharded on a mesh, as by mark_sharding() of PyTorch/XLA's SPMD. There one process sees
// global tensors and a compiler cuts them; here every rank runs the program, so a mark says which part of a
// global tensor a rank's tensor is:
//
//   a parameter     stays as it is until spmd_fully_shard() cuts it on the marked dimension; one that is marked
//                   with the axis model is that of a layer which the ranks of the axis then compute together
//   an activation   is replicated without a mark; marking cuts it: the result is this rank's part, and what
//                   is computed from it is this rank's part of the computation
//
// Marks of activations follow through views, elementwise operations and matrix products where the operands
// determine the result (shard/spmd/mark_rules.h has the table). The result of any other operation on a marked
// tensor has none, and mark_sharding() and full_tensor() ask for one. Only operations of libtorch are seen: what
// other code computes has no mark either.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/mesh.h"

namespace fsdp::shard {

/// On which axes of a mesh each dimension of a tensor is cut, as in XLA's SPMD and jax.sharding.
/// PartitionSpec{{kDcn, kData}, {}}: the first dimension over dcn x data, the second whole. Dimensions that
/// are not listed are whole.
class PartitionSpec {
 public:
  using Axes = std::vector<comm::MeshAxis>;

  PartitionSpec() = default;
  PartitionSpec(std::initializer_list<Axes> dimensions) : dimensions_(dimensions) {}
  explicit PartitionSpec(std::vector<Axes> dimensions) : dimensions_(std::move(dimensions)) {}

  size_t size() const { return dimensions_.size(); }
  /// Empty for a whole dimension.
  const Axes& axes(size_t dimension) const;
  /// Dimensions with axes.
  std::vector<size_t> cut_dimensions() const;
  bool operator==(const PartitionSpec&) const = default;

 private:
  std::vector<Axes> dimensions_;
};

/// The first dimension, the batch, over dcn x data: how FSDP via SPMD cuts activations.
PartitionSpec batch_spec();

/// "(dcn x data, whole)".
std::string to_string(const PartitionSpec& spec);

/// Of which global tensor a rank's tensor is a part.
struct Sharding {
  comm::MeshShape mesh;
  PartitionSpec spec;
  std::vector<int64_t> global_shape;
};

/// For a parameter (a leaf that requires a gradient): marks and returns it. For an activation that all ranks
/// hold alike: returns this rank's part, marked. In backward the gradient of the whole activation is
/// assembled from the ranks' parts, for a loss that is the mean of the ranks' losses, and one on the ranks that
/// differ on model alone: collective over the axes of the spec. An activation that is marked so already, or whose
/// operands determine it, is returned as it is: nothing is cut twice. One that is marked so but for the axis model is
/// cut over that.
///
/// Throws Error(kUsage) for a parameter of a module that is sharded already, for a spec that does not fit, for a dimension that does not divide evenly, for an
/// activation that is marked with another spec, for one whose operands were marked and do not determine it,
/// and, inside a sharded module, for one that has no mark and no such operands.
at::Tensor mark_sharding(const at::Tensor& tensor, const comm::Mesh& mesh, const PartitionSpec& spec);

/// States that `local` is this rank's part, such as the rows from its data loader, and returns it. All ranks'
/// parts must have one shape. With the spec {}, every rank has all of it. Replaces a mark.
at::Tensor mark_local_shard(const at::Tensor& local, const comm::Mesh& mesh, const PartitionSpec& spec);

/// nullopt for a tensor without a mark, or whose operands do not determine one.
std::optional<Sharding> sharding_of(const at::Tensor& tensor);

/// The global tensor of a marked activation; the tensor itself if it has no mark. Collective over the axes of
/// its spec. Not differentiable. Throws Error(kUsage) for a mark that is not determined.
at::Tensor full_tensor(const at::Tensor& tensor, const comm::Mesh& mesh);

}  // namespace fsdp::shard
