#pragma once

#include <cstddef>
#include <optional>

#include "comm/communicator.h"

namespace fsdp::shard {

/// Compares what every rank is about to use; number_of_units stands for the end of the pass. Collective.
/// Returns the first rank that differs from rank 0 and what it and rank 0 are about to use.
struct OrderDifference {
  int rank = 0;
  size_t theirs = 0, first_ranks = 0;
};
std::optional<OrderDifference> check_across_ranks(comm::Communicator& world, size_t unit);

}  // namespace fsdp::shard
