#include "shard/per_parameter_layout.h"

#include <algorithm>

#include "util/error.h"

namespace fsdp::shard {

PerParameterLayout::PerParameterLayout(const std::vector<Parameter>& parameters, int world_size)
    : UnitLayout(parameters, world_size) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<int64_t>& shape = parameters[i].shape;
    auto dimension = static_cast<size_t>(parameters[i].shard_dimension);
    FSDP_CHECK(dimension < std::max<size_t>(shape.size(), 1), parameters[i].name, ": dimension ", dimension);
    Cut cut;
    if (parameters_[i].numel == 0) {
      cuts_.push_back({.shard_offset = shard_numel_});
      continue;
    }
    int64_t size = shape.empty() ? 1 : shape[dimension], inner = 1;
    for (size_t d = 0; d < dimension; ++d) cut.rows *= shape[d];
    for (size_t d = dimension + 1; d < shape.size(); ++d) inner *= shape[d];
    cut.columns = size * inner;
    cut.chunk = (size + world_size - 1) / world_size * inner;
    cut.shard_offset = shard_numel_;
    shard_numel_ += cut.rows * cut.chunk;
    cuts_.push_back(cut);
  }
}

LocalRange PerParameterLayout::local_range(size_t parameter, int rank) const {
  const Cut& cut = cuts_.at(parameter);
  return {.columns = {std::min(rank * cut.chunk, cut.columns), std::min((rank + 1) * cut.chunk, cut.columns),
                      cut.rows},
          .shard_offset = cut.shard_offset};
}

std::vector<PiecePlace> PerParameterLayout::pieces(size_t parameter) const {
  const Cut& cut = cuts_.at(parameter);
  if (parameters_[parameter].numel == 0) return {};
  const int64_t full = cut.columns / cut.chunk, rest = cut.columns % cut.chunk;
  std::vector<PiecePlace> pieces;
  pieces.push_back({.shape = {cut.rows, full, cut.chunk},
                    .whole = {.offset = 0, .strides = {cut.columns, cut.chunk, 1}},
                    .gathered = {.offset = cut.shard_offset, .strides = {cut.chunk, shard_numel_, 1}}});
  if (rest > 0) {
    pieces.push_back({.shape = {cut.rows, rest},
                      .whole = {.offset = full * cut.chunk, .strides = {cut.columns, 1}},
                      .gathered = {.offset = full * shard_numel_ + cut.shard_offset, .strides = {rest, 1}}});
  }
  return pieces;
}

int64_t largest_dimension(const std::vector<int64_t>& shape) {
  return shape.empty() ? 0 : std::max_element(shape.begin(), shape.end()) - shape.begin();
}

}  // namespace fsdp::shard
