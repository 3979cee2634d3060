#pragma once

// Advice on units: parameters that should not be left to the root unit. Needs no libtorch.

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
  int64_t numel = 0;            ///< of their parameters in the root
  int64_t unsharded_bytes = 0;  ///< of these parameters, gathered
  int64_t least_numel = 0;      ///< of the block with the fewest elements in the root

  /// A warning with its remedy, or empty if there are no such blocks.
  std::string text(int64_t min_num_params) const;
};

/// Blocks are told apart by one number in the names of their parameters: "layers.0", "layers.1". Reports none
/// where units are not cut, since nothing is gathered then, and where the blocks' share of the model is
/// negligible.
BlocksInRoot blocks_in_root(const std::vector<UnitSizes>& units);

}  // namespace fsdp::shard
