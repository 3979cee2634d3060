#pragma once

// TimeLeft: estimates the time until the end of a run.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "setup/config/config.h"

namespace fsdp::train {

/// Work between two steps, whose time does not count as a step's.
enum class Pause { kValidation, kSample, kSave };

/// The estimate is the mean time of a step times the steps left, and for each kind of pause the mean time of
/// those so far times those that are still due. Pauses of a kind that was not seen yet count nothing.
/// Not thread-safe.
class TimeLeft {
 public:
  /// Reads when pauses are due from the config, whose training.steps are known.
  void set_schedule(const config::Config& config);
  /// Sets the seconds from the beginning of a save to that of the next, where saves go by time.
  void set_save_interval(double seconds) { save_interval_ = seconds; }

  /// Adds the time of so many steps.
  void add_steps(int64_t steps, double seconds);
  /// Adds the time of a pause. `was_due`: whether the schedule knew it. A save of the best state is not due.
  void add_pause(Pause kind, double seconds, bool was_due = true);

  /// Mean time of a step; nullopt before the first add_steps().
  std::optional<double> step_seconds() const {
    return steps_ == 0 ? std::nullopt : std::optional(step_seconds_ / steps_);
  }
  /// Returns the seconds after the end of `step` until the end of the run. The pauses after this step, if any
  /// are due, are still to come. nullopt before the first add_steps().
  std::optional<double> seconds_after(int64_t step) const;

  static constexpr size_t kKinds = 3;
  /// Returns the time of all pauses of each kind.
  std::array<double, kKinds> pause_seconds() const {
    return {seen_[0].seconds, seen_[1].seconds, seen_[2].seconds};
  }

 private:
  /// The steps after which a kind of pause is due.
  struct Due {
    int64_t interval = 0;  ///< 0: never
    bool at_end = false;   ///< also after the last step
  };
  struct Seen {
    int64_t count = 0, unexpected = 0;
    double seconds = 0;
  };
  static size_t index(Pause kind) { return static_cast<size_t>(kind); }
  double pauses_from(int64_t step, Pause kind) const;

  int64_t total_steps_ = 0;
  std::array<Due, kKinds> due_{};
  std::array<Seen, kKinds> seen_{};
  double save_interval_ = 0;  ///< 0: saves do not go by time, or their interval is not known yet
  int64_t readings_ = 0;
  double steps_ = 0, step_seconds_ = 0;  ///< sums in which older readings count less
};

/// Measures a pause during its lifetime.
class MeasuredPause {
 public:
  MeasuredPause(TimeLeft& time_left, Pause kind, bool was_due = true)
      : time_left_(time_left), kind_(kind), was_due_(was_due) {}
  ~MeasuredPause() {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
    time_left_.add_pause(kind_, seconds.count(), was_due_);
  }
  MeasuredPause(const MeasuredPause&) = delete;
  MeasuredPause& operator=(const MeasuredPause&) = delete;

 private:
  TimeLeft& time_left_;
  Pause kind_;
  bool was_due_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace fsdp::train
