#pragma once

// What the commands of a schedule communicate, as the engine does it (shard/engine/unit.cpp): for all that counts or times a
// step (shard/units/step_formula.h, tools/plan/time.h, tools/simulate/unit_calls.h). Needs no libtorch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

struct UnitCollective {
  enum class Operation { kAllGather, kReduceScatter, kAllReduce };
  enum class Among { kShards, kReplicas, kSlices };

  Operation kind;
  Among among;        ///< which of the unit's groups (shard/units/group_sizes.h)
  int64_t bytes = 0;  ///< this rank's payload, as in comm/api/trace.h
  size_t queue = 0;   ///< collectives of a queue run in order

  /// Of so many of them.
  Traffic traffic(int64_t times) const;
};

/// Each begins when the one before it has ended; empty for commands that communicate nothing.
std::vector<UnitCollective> collectives_of(Command::Action command, const UnitSizes& unit,
                                           bool reduce_scatter_group);

}  // namespace fsdp::shard
