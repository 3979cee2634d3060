#include "shard/units/unit_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "base/util/error.h"

namespace fsdp::shard {
namespace {

int64_t product_of(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Elements of 16 bytes in the smallest type in which a unit is gathered. Collectives and copies of shards
/// that do not begin there are slow: NCCL then moves single elements.
constexpr int64_t kAlignedElements = 8;
/// Shards from this size on are aligned; the padding is at most a thousandth of them.
constexpr int64_t kLeastToAlign = 1000 * kAlignedElements;

int64_t flat_shard(int64_t numel, int64_t world_size) {
  const int64_t shard = (numel + world_size - 1) / world_size;
  if (world_size == 1 || shard < kLeastToAlign) return shard;
  return (shard + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

}  // namespace

UnitLayout::UnitLayout(const std::vector<Parameter>& parameters, int world_size) : world_size_(world_size) {
  for (const Parameter& parameter : parameters) {
    const int64_t numel = product_of(parameter.shape);
    parameters_.push_back({parameter.name, parameter.shape, numel, numel_});
    numel_ += numel;
  }
}

FlatLayout::FlatLayout(const std::vector<Parameter>& parameters, int world_size)
    : UnitLayout(parameters, world_size) {
  shard_numel_ = flat_shard(numel_, world_size);
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

PerParameterLayout::PerParameterLayout(const std::vector<Parameter>& parameters, int world_size)
    : UnitLayout(parameters, world_size) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::span<const int64_t> shape = parameters[i].shape;
    auto dimension = static_cast<size_t>(parameters[i].shard_dimension);
    FSDP_CHECK(dimension < std::max<size_t>(shape.size(), 1), parameters[i].name, ": dimension ", dimension);
    ParameterCut& cut = cuts_.emplace_back(ParameterCut{.shard_offset = shard_numel_});
    if (parameters_[i].numel == 0) continue;
    const int64_t size = shape.empty() ? 1 : shape[dimension];
    const int64_t inner = shape.empty() ? 1 : product_of(shape.subspan(dimension + 1));
    cut.rows = product_of(shape.first(dimension));
    cut.columns = size * inner;
    cut.chunk = (size + world_size - 1) / world_size * inner;
    shard_numel_ += cut.rows * cut.chunk;
  }
}

LocalRange PerParameterLayout::local_range(size_t parameter, int rank) const {
  const ParameterCut& cut = cuts_.at(parameter);
  return {.columns = {std::min(rank * cut.chunk, cut.columns), std::min((rank + 1) * cut.chunk, cut.columns),
                      cut.rows},
          .shard_offset = cut.shard_offset};
}

std::vector<PiecePlace> PerParameterLayout::pieces(size_t parameter) const {
  const ParameterCut& cut = cuts_.at(parameter);
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

std::unique_ptr<UnitLayout> make_layout(util::Named<Layout> layout,
                                        const std::vector<UnitLayout::Parameter>& parameters,
                                        int world_size) {
  if (layout == Layout::kPerParameter) return std::make_unique<PerParameterLayout>(parameters, world_size);
  return std::make_unique<FlatLayout>(parameters, world_size);
}

}  // namespace fsdp::shard
