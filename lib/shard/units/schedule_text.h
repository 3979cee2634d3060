#pragma once

// The schedule of a step as text.

#include <string>
#include <vector>

#include "shard/units/options.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// Returns the commands of a nominal pass (shard/units/nominal_pass.h) that follows an earlier one, in one
/// line for each event that has commands:
///
///   forward of layers.1 begins    reshard layers.0, wait for layers.1, gather layers.2
///
/// If there are more than `most_units` units besides the root, one line stands for the units in the middle;
/// 0: no limit.
std::string schedule_text(const std::vector<UnitSizes>& units, const ShardOptions& options,
                          size_t most_units = 0);

}  // namespace fsdp::shard
