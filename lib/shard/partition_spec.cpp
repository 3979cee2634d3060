#include "shard/partition_spec.h"

#include <ATen/core/Tensor.h>

#include <set>

#include "util/error.h"

namespace fsdp::shard {
namespace {

using util::ErrorKind;
using util::fail;

std::string joined(const PartitionSpec::Axes& axes) {
  std::string text;
  for (comm::MeshAxis axis : axes) text += util::concat(text.empty() ? "" : " x ", comm::name_of(axis));
  return text;
}

/// "dcn 2 x data 3 = 6".
std::string product_text(const PartitionSpec::Axes& axes, const comm::MeshShape& mesh) {
  std::string text;
  for (comm::MeshAxis axis : axes) {
    text += util::concat(text.empty() ? "" : " x ", comm::name_of(axis), " ", mesh.along(axis));
  }
  return axes.size() == 1 ? text : util::concat(text, " = ", mesh.along(axes));
}

}  // namespace

const PartitionSpec::Axes& PartitionSpec::axes(size_t dimension) const {
  static const Axes kWhole;
  return dimension < dimensions_.size() ? dimensions_[dimension] : kWhole;
}

std::vector<size_t> PartitionSpec::cut_dimensions() const {
  std::vector<size_t> cut;
  for (size_t dimension = 0; dimension < dimensions_.size(); ++dimension) {
    if (!dimensions_[dimension].empty()) cut.push_back(dimension);
  }
  return cut;
}

PartitionSpec batch_spec() { return {{comm::MeshAxis::kDcn, comm::MeshAxis::kData}}; }

std::string to_string(const PartitionSpec& spec) {
  std::string text;
  for (size_t dimension = 0; dimension < spec.size(); ++dimension) {
    const auto& axes = spec.axes(dimension);
    text += util::concat(dimension == 0 ? "" : ", ", axes.empty() ? "whole" : joined(axes));
  }
  return util::concat("(", text, ")");
}

void check_spec(const std::string& what, const PartitionSpec& spec, const std::vector<int64_t>& shape) {
  if (spec.size() > shape.size()) {
    fail(ErrorKind::kUsage, what, ": expected a partition spec of at most ", shape.size(),
         " dimensions for a tensor of shape ", at::IntArrayRef(shape), "; found ", to_string(spec), " of ",
         spec.size(), "; leave out what the tensor has not");
  }
  std::set<comm::MeshAxis> seen;
  for (size_t dimension = 0; dimension < spec.size(); ++dimension) {
    const auto& axes = spec.axes(dimension);
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!seen.insert(axes[i]).second) {
        fail(ErrorKind::kUsage, what, ": expected each mesh axis once in a partition spec; found ",
             comm::name_of(axes[i]), " twice in ", to_string(spec), "; cut one dimension with it");
      }
      if (i > 0 && axes[i] < axes[i - 1]) {
        fail(ErrorKind::kUsage, what,
             ": expected the axes of a dimension in the order dcn, data, model; found ", to_string(spec),
             "; reorder them");
      }
    }
  }
}

DimensionPart even_part(const std::string& what, const std::vector<int64_t>& shape, size_t dimension,
                        const PartitionSpec::Axes& axes, const comm::MeshShape& mesh,
                        const comm::MeshCoordinate& place) {
  const int64_t parts = mesh.along(axes), size = shape[dimension];
  if (size % parts != 0) {
    fail(ErrorKind::kUsage, what, ": expected dimension ", dimension, " of ", at::IntArrayRef(shape),
         " to divide over ", product_text(axes, mesh), " ranks; found ", size, " = ", size / parts, " x ",
         parts, " + ", size % parts, "; pad it to ", (size / parts + 1) * parts, " or change the mesh");
  }
  int64_t index = 0;
  for (comm::MeshAxis axis : axes) index = index * mesh.along(axis) + place.on(axis);
  return {.begin = index * (size / parts), .length = size / parts};
}

}  // namespace fsdp::shard
