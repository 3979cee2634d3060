#pragma once

// Whether the ranks that should hold the same do.

#include <string>

#include "shard/engine.h"

namespace fsdp::shard {

/// Compares the master weights of every parameter, by a hash of this rank's part, over the ranks that hold
/// the same part: the slices of hybrid sharding, and all ranks for no_shard and for replicated parameters.
/// Throws an AgreedError(kUnexpected) that names the first parameter that differs anywhere, in the order of
/// Engine::segments(), and a rank whose values are not those of the first replica; the message begins with
/// `when` ("before the first step"). Reads the shards once and sends 8 bytes a parameter; no effect where
/// nothing is replicated. Collective, between steps.
void require_equal_replicas(Engine& engine, const std::string& when);

}  // namespace fsdp::shard
