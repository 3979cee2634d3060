#pragma once

// The schedule of a step as text. Needs no libtorch.

#include <string>
#include <vector>

#include "shard/units/options.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// The commands of a nominal pass (shard/units/nominal_pass.h) that follows an earlier one. One line per event that
/// has commands:
///
///   forward of layers.1 begins    reshard layers.0, wait for layers.1, gather layers.2
///
/// If there are more than `most_units` units beside the root, a line stands for those in the middle; 0: no
/// limit.
std::string schedule_text(const std::vector<UnitSizes>& units, const ShardOptions& options,
                          size_t most_units = 0);

}  // namespace fsdp::shard
