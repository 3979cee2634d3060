#pragma once

// What this rank is doing right now, for the reports of a run that hangs or has lost a rank.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "comm/communicator.h"

namespace fsdp::comm {

/// Written by the communication stream and by the training loop, read by whoever reports. Thread-safe.
class Activity {
 public:
  struct Snapshot {
    int64_t step = 0;         ///< in progress; 0: before the first
    std::string collective;   ///< in progress: "all_gather of model.layers.3 (backward)"; empty: none
    std::string last;         ///< the collective that ended last; empty: none has
    double seconds = 0;       ///< since the collective began, or since the last one ended
    double step_seconds = 0;  ///< since the step began
    int64_t collectives = 0;  ///< ended so far
  };

  void begin_step(int64_t step);
  void begin_collective(const char* op, const CallSite& site);
  void end_collective();
  Snapshot snapshot() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  Snapshot state_;
  Clock::time_point changed_ = Clock::now(), step_began_ = Clock::now();
};

/// "in all_gather of model.layers.3 (backward) of step 7 for 60.0 s" or "computing in step 7, 12.5 s after
/// all_gather of ...".
std::string describe(const Activity::Snapshot& snapshot);

/// Notes every collective of `inner` in `activity` while it runs. A collective that fails stays the one in
/// progress.
std::unique_ptr<Communicator> make_noting_communicator(std::unique_ptr<Communicator> inner,
                                                       std::shared_ptr<Activity> activity);

}  // namespace fsdp::comm
