#pragma once

// A pass as most models run it, for those who need the schedule of a step without running one: each unit is
// used once, in the order of the units, nested as the names of their stages are, and backward reaches all of
// them. Needs no libtorch.

#include <vector>

#include "shard/schedule.h"
#include "shard/unit_sizes.h"

namespace fsdp::shard {

/// What the schedule has to know of the units.
std::vector<ScheduledUnit> scheduled_units(const std::vector<UnitSizes>& units);

class NominalPass {
 public:
  explicit NominalPass(const std::vector<UnitSizes>& units);

  /// A forward begins or ends. Backward has the same events in reverse, with begin and end exchanged.
  struct Event {
    size_t unit;  ///< 0: those of the root stage
    bool begins;
  };

  /// Runs one forward and backward. `observe(event, pass)` is called before each event.
  template <typename Observe>
  void run(Schedule& schedule, const Observe& observe) const;
  void run(Schedule& schedule) const {
    run(schedule, [](const Event&, Pass) {});
  }

 private:
  std::vector<Event> forward_;
  std::vector<bool> backward_is_seen_to_end_;  ///< [unit]
};

template <typename Observe>
void NominalPass::run(Schedule& schedule, const Observe& observe) const {
  for (const Event& event : forward_) {
    observe(event, Pass::kForward);
    event.begins ? schedule.forward_begins(event.unit) : schedule.forward_ends(event.unit);
  }
  for (auto reversed = forward_.rbegin(); reversed != forward_.rend(); ++reversed) {
    const Event event{reversed->unit, !reversed->begins};
    if (event.unit == 0 && !event.begins) break;
    if (!event.begins && !backward_is_seen_to_end_[event.unit]) continue;
    observe(event, Pass::kBackward);
    event.begins ? schedule.backward_begins(event.unit) : schedule.backward_ends(event.unit);
  }
  observe({0, false}, Pass::kBackward);
  schedule.whole_backward_ends();
}

}  // namespace fsdp::shard
