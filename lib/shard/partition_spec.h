#pragma once

// PartitionSpec: on which axes of a mesh each dimension of a tensor is cut, as in XLA's SPMD and
// jax.sharding. Arithmetic only.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "comm/mesh_shape.h"

namespace fsdp::shard {

/// PartitionSpec{{kDcn, kData}, {}}: the first dimension over dcn x data, the second whole. Dimensions that
/// it does not name are whole.
class PartitionSpec {
 public:
  using Axes = std::vector<comm::MeshAxis>;

  PartitionSpec() = default;
  PartitionSpec(std::initializer_list<Axes> dimensions) : dimensions_(dimensions) {}
  explicit PartitionSpec(std::vector<Axes> dimensions) : dimensions_(std::move(dimensions)) {}

  size_t size() const { return dimensions_.size(); }
  /// Empty for a dimension that is whole.
  const Axes& axes(size_t dimension) const;
  /// Dimensions with axes.
  std::vector<size_t> cut_dimensions() const;
  bool operator==(const PartitionSpec&) const = default;

 private:
  std::vector<Axes> dimensions_;
};

/// The batch, which is the first dimension, over dcn x data: what FSDP via SPMD does to activations.
PartitionSpec batch_spec();

/// "(dcn x data, whole)".
std::string to_string(const PartitionSpec& spec);

/// Throws Error(kUsage), which begins with `what`, unless the spec fits a tensor of this shape: no more
/// dimensions than it has, each axis once, the axes of a dimension in the order dcn, data.
void check_spec(const std::string& what, const PartitionSpec& spec, const std::vector<int64_t>& shape);

/// The part of a dimension that lies on one rank.
struct DimensionPart {
  int64_t begin = 0, length = 0;
};

/// Of a dimension of `shape` that the spec cuts evenly. Throws Error(kUsage) with the numbers when it does
/// not divide.
DimensionPart even_part(const std::string& what, const std::vector<int64_t>& shape, size_t dimension,
                        const PartitionSpec::Axes& axes, const comm::MeshShape& mesh,
                        const comm::MeshCoordinate& place);

}  // namespace fsdp::shard
