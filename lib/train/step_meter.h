#pragma once

// Speed of training alone: the time of validation and saving does not count.

#include <chrono>
#include <cstdint>

namespace fsdp::train {

class StepMeter {
 public:
  using Clock = std::chrono::steady_clock;

  struct Reading {
    double tokens_per_second = 0.0;
    double step_seconds = 0.0;  ///< mean of a step
    int64_t steps = 0;          ///< since the last reading
  };

  void start(int64_t step, int64_t tokens, Clock::time_point now = Clock::now()) {
    since_ = now;
    step_ = step;
    tokens_ = tokens;
  }

  /// What happens between pause() and go_on() takes no time.
  void pause(Clock::time_point now = Clock::now()) { paused_at_ = now; }
  void go_on(Clock::time_point now = Clock::now()) { since_ += now - paused_at_; }

  /// Speed since the last reading, or the start.
  Reading read(int64_t step, int64_t tokens, Clock::time_point now = Clock::now()) {
    double seconds = std::chrono::duration<double>(now - since_).count();
    Reading reading{static_cast<double>(tokens - tokens_) / seconds,
                    seconds / static_cast<double>(step - step_), step - step_};
    start(step, tokens, now);
    return reading;
  }

 private:
  Clock::time_point since_, paused_at_;
  int64_t step_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace fsdp::train
