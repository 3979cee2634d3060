#include "shard/flat_layout.h"

#include <algorithm>

namespace fsdp::shard {

FlatLayout::FlatLayout(const std::vector<Parameter>& parameters, int world_size)
    : UnitLayout(parameters, world_size) {
  shard_numel_ = (numel_ + world_size - 1) / world_size;
}

LocalRange FlatLayout::local_range(size_t parameter, int rank) const {
  const ParameterPlace& place = parameters_.at(parameter);
  int64_t shard_begin = rank * shard_numel_, shard_end = shard_begin + shard_numel_;
  int64_t begin = std::max(place.offset, shard_begin);
  int64_t end = std::min(place.offset + place.numel, shard_end);
  if (begin >= end) return {};
  return {.columns = {begin - place.offset, end - place.offset}, .shard_offset = begin - shard_begin};
}

std::vector<PiecePlace> FlatLayout::pieces(size_t parameter) const {
  const ParameterPlace& place = parameters_.at(parameter);
  return {{.shape = {place.numel},
           .whole = {.offset = 0, .strides = {1}},
           .gathered = {.offset = place.offset, .strides = {1}}}};
}

}  // namespace fsdp::shard
