#pragma once

// The schedule of a step as text: what is done when the forward and backward of each unit begin and end.
// Needs no libtorch.

#include <string>
#include <vector>

#include "shard/options.h"
#include "shard/unit_sizes.h"

namespace fsdp::shard {

/// Of a nominal pass (shard/nominal_pass.h) whose order is known. One line an event that has commands:
///
///   forward of layers.1 begins    reshard layers.0, wait for layers.1, gather layers.2
///
/// Of more units than `most_units`, beside the root, those in the middle are left out, with a line in their
/// place; 0: none are.
std::string schedule_text(const std::vector<UnitSizes>& units, const ShardOptions& options,
                          size_t most_units = 0);

}  // namespace fsdp::shard
