#pragma once

// The activity of this rank at the moment, for reports of a run that hangs or has lost a rank.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/api/communicator.h"

namespace fsdp::comm {

/// Written by the communication streams and the training loop. Thread-safe.
class Activity {
 public:
  struct Snapshot {
    int64_t step = 0;         ///< step in progress; 0: before the first
    int64_t steps_begun = 0;  ///< number of steps that this process has begun
    /// Collectives in progress, such as "all_gather of model.layers.3 (backward)". Several groups can have
    /// one each: they are joined by "and", oldest first. Empty: none.
    std::string collective;
    std::string last;    ///< the collective that ended last; empty: none has ended
    double seconds = 0;  ///< since the oldest collective in progress began, else since the last one ended
    double step_seconds = 0;  ///< since the step began
    int64_t collectives = 0;  ///< number of collectives that have ended
  };

  void begin_step(int64_t step);
  /// Returns the number of the collective, for end_collective().
  int64_t begin_collective(const char* op, const CallSite& site);
  void end_collective(int64_t number);
  /// Ends the step and all collectives in progress, even one that has failed: this process goes on in another
  /// group.
  void leave_step();
  Snapshot snapshot() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct RunningCollective {
    std::string text;
    Clock::time_point began;
  };

  mutable std::mutex mutex_;
  Snapshot state_;
  std::map<int64_t, RunningCollective> in_progress_;  ///< keys are numbers, which order them by age
  int64_t next_number_ = 0;
  Clock::time_point last_ended_ = Clock::now(), step_began_ = Clock::now();
};

/// "in all_gather of model.layers.3 (backward) of step 7 for 60.0 s" or "computing in step 7, 12.5 s after
/// all_gather of ...".
std::string describe(const Activity::Snapshot& snapshot);

/// Records the collectives of `inner` and its subgroups in `activity` while they run. One that fails stays in
/// progress.
std::shared_ptr<Communicator> make_activity_communicator(std::shared_ptr<Communicator> inner,
                                                         std::shared_ptr<Activity> activity);

}  // namespace fsdp::comm
