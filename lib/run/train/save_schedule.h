#pragma once

// SaveSchedule: the steps after which a run saves (checkpoint.schedule and its intervals).
//
// Saves by time go by the clock of rank 0. Between two saves the ranks look at that clock after a few steps
// only: rank 0 tells the others after how many steps they look next, which is half of the steps that fit into
// the time that is left, and at most 100. An interval of n steps therefore takes about n / 100 + log2(100)
// collectives, and steps that become up to twice as slow do not delay a save.

#include <cstdint>
#include <limits>

#include "comm/api/communicator.h"
#include "state/manifest/options.h"

namespace fsdp::train {

bool saves_by_time(const checkpoint::CheckpointOptions& options);
/// Steps between saves that are due whatever the time; 0: there are none.
int64_t steps_between_saves(const checkpoint::CheckpointOptions& options);

/// The result is the same on every rank. Times are seconds of the run on the caller's clock, of which only
/// rank 0's counts.
class SaveSchedule {
 public:
  /// Both must outlive the object.
  SaveSchedule(const checkpoint::CheckpointOptions& options, comm::Communicator& communicator);

  /// Whether a run saves before its end.
  bool saves_on_the_way() const { return saves_by_time(options_) || steps_between_saves(options_) > 0; }
  /// Whether a save is due after this step, whatever the time.
  bool is_due_by_steps(int64_t step) const;
  /// Whether a save may be due after this step.
  bool may_be_due(int64_t step) const { return is_due_by_steps(step) || step >= next_look_; }
  /// Starts after `step`. `saved`: the time at which the newest checkpoint of the run was taken.
  void begin(int64_t step, double now, double saved);
  /// Whether a save is due after this step. Called after each step. `is_saving`: whether an earlier save has
  /// not ended, which a save by time does not wait for. Collective if saves go by time and it has ended: an
  /// all-reduce of eight bytes after some steps.
  bool is_due(int64_t step, double now, bool is_saving);
  /// Notes that a save has begun at that time. Returns the seconds until a save by time is expected to
  /// follow; 0: not known.
  double note_save(double now);
  /// Sets the interval of saves with checkpoint.schedule = "auto". Only that of rank 0 counts.
  void set_interval(double seconds) { interval_seconds_ = seconds; }
  /// Seconds from the beginning of a save to that of the next; 0: saves go by steps, or follow each other.
  double interval_seconds() const { return interval_seconds_; }

 private:
  static constexpr int64_t kWhenSaved = std::numeric_limits<int64_t>::max();

  bool is_continuous() const { return options_.schedule == checkpoint::SaveTimes::kContinuous; }
  /// The number of steps until rank 0 looks at its clock again; 0: the interval is over. Collective.
  int64_t steps_to_next_look(int64_t step, double now);

  const checkpoint::CheckpointOptions& options_;
  comm::Communicator& communicator_;
  double interval_seconds_;
  int64_t next_look_ = kWhenSaved;  ///< step after which the ranks look at the clock
  int64_t last_look_ = 0;
  double looked_ = 0;  ///< time of the last look
  double saved_ = 0;   ///< time at which the last save has begun
};

}  // namespace fsdp::train
