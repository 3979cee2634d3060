#pragma once

// Tensors marked as sharded on a mesh, as by mark_sharding() of PyTorch/XLA's SPMD. In XLA one process sees
// global tensors and a compiler cuts them. Here every rank runs the program, so a mark says which part of a
// global tensor a rank's tensor is:
//
//   a parameter     stays as it is until spmd_fully_shard() cuts it on the marked dimension; a parameter that
//   is
//                   marked with the axis model belongs to a layer that the ranks of the axis compute together
//   an activation   is replicated without a mark; marking cuts it: the result is this rank's part, and
//                   computations with it are this rank's part of the whole computation
//
// Marks of activations follow through views, elementwise operations and matrix products where the operands
// determine the result (shard/spmd/mark_rules.h has the table). The result of any other operation on a marked
// tensor has no mark, and mark_sharding() and full_tensor() ask for one. Only operations of libtorch are
// seen: results of other code have no mark either.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/api/mesh.h"

namespace fsdp::shard {

/// The axes of a mesh on which each dimension of a tensor is cut, as in XLA's SPMD and jax.sharding. The spec
/// {{kDcn, kData}, {}} cuts the first dimension over dcn x data and leaves the second whole. Dimensions that
/// are not listed are whole.
class PartitionSpec {
 public:
  using Axes = std::vector<comm::MeshAxis>;

  PartitionSpec() = default;
  PartitionSpec(std::initializer_list<Axes> dimensions) : dimensions_(dimensions) {}
  explicit PartitionSpec(std::vector<Axes> dimensions) : dimensions_(std::move(dimensions)) {}

  size_t size() const { return dimensions_.size(); }
  /// Axes of a dimension; empty for a whole one.
  const Axes& axes(size_t dimension) const;
  /// Dimensions with axes.
  std::vector<size_t> cut_dimensions() const;
  bool operator==(const PartitionSpec&) const = default;

 private:
  std::vector<Axes> dimensions_;
};

/// Cuts the first dimension, the batch, over dcn x data, as FSDP via SPMD cuts activations.
PartitionSpec batch_spec();

/// "(dcn x data, whole)".
std::string to_string(const PartitionSpec& spec);

/// The global tensor that a rank's tensor is a part of.
struct Sharding {
  comm::MeshShape mesh;
  PartitionSpec spec;
  std::vector<int64_t> global_shape;
};

/// Marks and returns a parameter (a leaf that requires a gradient). Returns this rank's part, marked, of an
/// activation that all ranks hold alike. Backward assembles the gradient of the whole activation from the
/// ranks' parts, for a loss that is the mean of the ranks' losses, and that ranks which differ on model alone
/// share. Backward is collective over the axes of the spec. An activation that has this mark already, or
/// whose operands determine it, is returned as it is, so nothing is cut twice. An activation whose mark lacks
/// the axis model only is cut over that axis.
///
/// Throws Error(kUsage) for a parameter of a module that is sharded already, for a spec that does not fit,
/// for a dimension that does not divide evenly, for an activation with another mark, for an activation whose
/// operands were marked and do not determine it, and, inside a sharded module, for an activation that has no
/// mark and no such operands.
at::Tensor mark_sharding(const at::Tensor& tensor, const comm::Mesh& mesh, const PartitionSpec& spec);

/// Marks `local` as this rank's part, such as the rows from its data loader, and returns it. With the spec
/// {}, every rank has all of it. Replaces a mark. Requires: parts of one shape on all ranks.
at::Tensor mark_local_shard(const at::Tensor& local, const comm::Mesh& mesh, const PartitionSpec& spec);

/// Returns the mark; nullopt for a tensor without a mark, or whose operands do not determine one.
std::optional<Sharding> sharding_of(const at::Tensor& tensor);

/// Returns the global tensor of a marked activation, and the tensor itself if it has no mark. Not
/// differentiable. Throws Error(kUsage) for a mark that is not determined. Collective over the axes of the
/// spec.
at::Tensor full_tensor(const at::Tensor& tensor, const comm::Mesh& mesh);

}  // namespace fsdp::shard
