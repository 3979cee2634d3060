#pragma once

// Conditions that tie several keys together.

#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::config {

struct Conflict {
  std::vector<std::string> keys;  ///< full names of the keys involved, the likeliest culprit first
  std::string message;            ///< what was expected and found, with the arithmetic
};

/// Every condition that the configuration breaks. Each key by itself is supposed to be within its limits.
std::vector<Conflict> find_conflicts(const Config& config);

/// Throws util::Error(kUsage) with the arithmetic unless the product of [mesh] is the world size; -1, at most
/// once, stands for what the other axes leave (comm::resolve_mesh()).
void check_world(const Config& config, int world_size);

}  // namespace fsdp::config
