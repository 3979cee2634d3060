#pragma once

// Division of factors into blocks for tile_product.cpp.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/util/error.h"
#include "model/kernels/block_product.h"
#include "model/kernels/cpu/tiles.h"

namespace fsdp::kernels {

struct TileRange {
  int64_t first, count;
  int64_t end() const { return first + count; }
};

/// Returns x as a left factor (rows by depth) or right one (columns by depth); without data if undefined.
inline cpu::TileSource tile_source(const at::Tensor& x, cpu::TileSide side) {
  if (!x.defined()) return {};
  FSDP_CHECK(x.stride(1) == 1 || x.stride(0) == 1, x.sizes(), " ", x.strides());
  const int across = side == cpu::TileSide::kLeft ? 0 : 1, depth = 1 - across;
  const bool depth_is_contiguous = x.stride(depth) == 1;
  return {.data = x.const_data_ptr(),
          .element = x.scalar_type() == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16,
          .stride = depth_is_contiguous ? x.stride(across) : x.stride(depth),
          .depth_is_contiguous = depth_is_contiguous,
          .across = x.size(across),
          .depth = x.size(depth)};
}

inline cpu::TileSource tile_part(const cpu::TileSource& from, const TileRange& across,
                                 const TileRange& depth) {
  const int64_t bytes = from.element == cpu::Element::kFloat ? 4 : 2;
  const int64_t first = from.depth_is_contiguous ? across.first * from.stride + depth.first
                                                 : depth.first * from.stride + across.first;
  cpu::TileSource part = from;
  part.data = static_cast<const char*>(from.data) + bytes * first;
  part.across = across.count;
  part.depth = depth.count;
  return part;
}

/// Rows of a left factor or columns of a right one. `sums` is the first one's position in the group's sums.
struct TileBlock {
  size_t factor;
  TileRange range;
  int64_t sums;
};

/// Blocks that are packed together.
struct TileGroup {
  std::vector<TileBlock> blocks;
  int64_t sums = 0;  ///< rows or columns of sums, in whole tiles
};

/// Cuts a range into blocks of about `across` rows or columns. Begins a new group after `most` sums.
inline void append_blocks(std::vector<TileGroup>& groups, size_t factor, const TileRange& range,
                          int64_t across, int64_t most) {
  const int64_t part = equal_part(range.count, across);
  for (int64_t first = range.first; first < range.end(); first += part) {
    if (groups.back().sums >= most) groups.emplace_back();
    TileGroup& group = groups.back();
    const int64_t count = std::min(part, range.end() - first);
    group.blocks.push_back({.factor = factor, .range = {first, count}, .sums = group.sums});
    group.sums += rounded_up(count, cpu::kTileSide);
  }
}

}  // namespace fsdp::kernels
