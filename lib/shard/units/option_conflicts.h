#pragma once

// Shard options that exclude each other.

#include <string>
#include <vector>

#include "shard/units/options.h"

namespace fsdp::shard {

struct OptionConflict {
  std::vector<std::string> fields;  ///< keys of a config, the most likely culprit first: "fsdp.cpu_offload"
  std::string message;              ///< one sentence: expected, found, reason, remedy
};

/// All conflicts among the options, including single values out of range. plan_units() checks options that
/// depend on the model (stage types, names).
std::vector<OptionConflict> find_option_conflicts(const ShardOptions& options);

/// Whether a unit is gathered or reduced in another type than float32.
bool any_unit_is_mixed(const ShardOptions& options);

/// Whether gathers or reductions are quantized on some links.
bool codes_links(const ShardOptions& options);

/// Throws Error(kUsage) with the messages of all conflicts, if there are any.
void require_no_option_conflicts(const ShardOptions& options);

}  // namespace fsdp::shard
