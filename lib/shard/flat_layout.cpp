#include "shard/flat_layout.h"

#include <algorithm>

namespace fsdp::shard {

FlatLayout::FlatLayout(const std::vector<Parameter>& parameters, int world_size) : world_size_(world_size) {
  for (const Parameter& parameter : parameters) {
    int64_t count = 1;
    for (int64_t size : parameter.shape) count *= size;
    parameters_.push_back({parameter.name, parameter.shape, count, numel_});
    numel_ += count;
  }
  shard_numel_ = (numel_ + world_size - 1) / world_size;
}

LocalRange FlatLayout::local_range(size_t parameter, int rank) const {
  const ParameterPlace& place = parameters_.at(parameter);
  int64_t shard_begin = rank * shard_numel_, shard_end = shard_begin + shard_numel_;
  int64_t begin = std::max(place.offset, shard_begin);
  int64_t end = std::min(place.offset + place.numel, shard_end);
  if (begin >= end) return {};
  return {begin - place.offset, end - place.offset, begin - shard_begin};
}

}  // namespace fsdp::shard
