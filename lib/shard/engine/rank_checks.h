#pragma once

// Checks that the ranks agree.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"

namespace fsdp::shard {

class Engine;

/// A rank that uses a unit other than rank 0's.
struct OrderDifference {
  int rank = 0;
  size_t theirs = 0, first_ranks = 0;
};

/// Compares the unit that each rank is about to use; the number of units stands for the end of the pass.
/// Returns the first rank that differs from rank 0, with both units. Collective.
std::optional<OrderDifference> check_across_ranks(comm::Communicator& world, size_t unit);

/// Returns the names of Engine::buffers() that are not equal on all ranks, in their order, found by a hash of
/// each. Sends nothing where there are no buffers or no other ranks. Collective.
std::vector<std::string> unequal_buffers(const Engine& engine);

/// Names unequal_buffers() in a warning on rank 0, whose buffers are the ones that are saved. `what` begins
/// the message. Collective.
void warn_of_unequal_buffers(const Engine& engine, const char* what);

/// Compares the weights of every parameter between the ranks that should hold the same part of it (the
/// slices of hybrid sharding, and all ranks for no_shard and replicated parameters), by a hash of that part.
/// Throws an AgreedError(kUnexpected) that names the first parameter, in the order of Engine::segments(),
/// that differs on any rank, and a rank that differs from the first replica; the message begins with `when`
/// ("before the first step"). Reads the shards once and sends 8 bytes per parameter; no effect where nothing
/// is replicated. Collective, between steps.
void require_equal_replicas(Engine& engine, const std::string& when);

}  // namespace fsdp::shard
