#pragma once

// Advice on units: parameters that should not belong to the root unit.

#include <cstdint>
#include <string>
#include <vector>

#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// Parameters of a model's repeated blocks that belong to the root unit, which stays gathered from the
/// beginning of forward to the end of backward.
struct BlocksInRoot {
  std::string first, last;      ///< names of blocks: "model.layers.0", "model.layers.31"
  int64_t blocks = 0;           ///< number of such blocks; 0: none
  int64_t numel = 0;            ///< number of elements that these blocks have in the root
  int64_t unsharded_bytes = 0;  ///< bytes of these elements when gathered
  int64_t least_numel = 0;      ///< number of elements of the block that has the fewest in the root

  /// Returns a warning with its remedy, or an empty text if there are no such blocks.
  std::string text(int64_t min_num_params) const;
};

/// Finds blocks by a number in the names of their parameters: "layers.0", "layers.1". Reports none where
/// units are not cut, because nothing is gathered then, and where the blocks' share of the model is
/// negligible.
BlocksInRoot blocks_in_root(const std::vector<UnitSizes>& units);

}  // namespace fsdp::shard
