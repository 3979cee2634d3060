#pragma once

// The pass of most models, which runs a schedule without a step: each unit is used once, in the order of the
// units, nested as the names of their stages are, and backward reaches all units with a differentiable
// output.

#include <functional>
#include <vector>

#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::shard {

/// The units as a Schedule takes them.
std::vector<ScheduledUnit> scheduled_units(const std::vector<UnitSizes>& units);

class NominalPass {
 public:
  explicit NominalPass(const std::vector<UnitSizes>& units);

  /// The forward or backward of a unit begins or ends; unit 0 stands for all units of the root stage.
  struct StageEvent {
    size_t unit;
    bool begins;
  };
  using Observer = std::function<void(const StageEvent& event, Pass pass)>;

  /// Runs one forward and backward. `observe` is called before each event.
  void run(Schedule& schedule, const Observer& observe = nullptr) const;

 private:
  std::vector<StageEvent> forward_;  ///< backward has the same in reverse, with begin and end exchanged
  std::vector<bool> has_backward_, backward_is_seen_to_end_;  ///< indexed by unit
};

}  // namespace fsdp::shard
