#pragma once

// The types of a model's buffers.

#include <vector>

#include "shard/engine/wrap_policy.h"
#include "shard/units/options.h"

namespace fsdp::shard {

/// Gives the floating-point buffers of the model the type MixedPrecisionOptions::buffer_dtype. A module
/// without parameters has the type of the unit around it.
void cast_buffers(torch::nn::Module& root, const std::vector<UnitPlan>& units,
                  const MixedPrecisionOptions& options);

}  // namespace fsdp::shard
