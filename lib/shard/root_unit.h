#pragma once

// What the root unit had better not hold.

#include <cstdint>
#include <string>
#include <vector>

#include "shard/unit_sizes.h"

namespace fsdp::shard {

/// Parameters of the blocks that a model repeats, where they belong to the root unit, which is gathered from
/// the begin of forward to the end of backward.
struct BlocksInRoot {
  std::string first, last;      ///< of the blocks: "model.layers.0", "model.layers.31"
  int64_t blocks = 0;           ///< 0: none
  int64_t numel = 0;            ///< of their parameters that the root holds
  int64_t unsharded_bytes = 0;  ///< of these, gathered
  int64_t least_numel = 0;      ///< of one block, that which has the fewest there

  /// As a warning with its remedy, or empty if there are none.
  std::string text(int64_t min_num_params) const;
};

/// Blocks are what differ in one number in the names of their parameters, "layers.0" and "layers.1". None
/// where units are not cut, as in a world of one, since nothing is gathered then, and where they are next to
/// nothing.
BlocksInRoot blocks_in_root(const std::vector<UnitSizes>& units);

}  // namespace fsdp::shard
