#pragma once

// Engines whose parameters have several segments, as those of parameters that are cut twice do.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "shard/engine/engine.h"

namespace fsdp::testing {

/// Makes each segment that is a range of a flattened matrix into rectangles of a view of the matrix with a
/// row for each of its rows, or two for each if their length is even. The elements are the same.
inline void cut_segments_into_rows(const shard::Engine& engine) {
  std::vector<shard::Segment> all;
  for (const shard::Segment& segment : engine.segments()) {
    if (segment.shape.size() != 2 || segment.range.rows != 1) {
      all.push_back(segment);
      continue;
    }
    const int64_t numel = c10::multiply_integers(segment.shape);
    const int64_t rows = segment.shape[0] * (segment.shape[1] % 2 == 0 ? 2 : 1);
    shard::Segment part = segment;
    for (const util::Rectangle& range : util::compose(numel, segment.range, {0, numel / rows, rows})) {
      part.range = range;
      all.push_back(part);
      part.shard_offset += part.numel();
    }
  }
  const_cast<std::vector<shard::Segment>&>(engine.segments()) = std::move(all);
}

}  // namespace fsdp::testing
