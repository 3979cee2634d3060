#pragma once

// The collectives that the engine issues for the commands of a schedule (shard/engine/unit.cpp,
// shard/engine/reduce), for code that counts or times a step (shard/units/step_formula.h, tools/plan/time.h,
// tools/simulate/unit_calls.h).

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
  Among among;              ///< group of the unit that communicates (shard/units/group_sizes.h)
  int64_t bytes = 0;        ///< this rank's payload on its links, as in comm/api/trace.h
  size_t queue = 0;         ///< collectives of a queue run in order
  int64_t exact_bytes = 0;  ///< the payload before it is coded, which reductions inside a host send

  /// Traffic of `times` such collectives.
  Traffic traffic(int64_t times) const;
};

/// Returns the collectives of a command, each of which begins when the one before it has ended. Empty for
/// commands that communicate nothing.
std::vector<UnitCollective> collectives_of(Command::Action command, const UnitSizes& unit,
                                           bool reduce_scatter_group);

}  // namespace fsdp::shard
