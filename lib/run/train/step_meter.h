#pragma once

// The speed of steps, their wait for batches, and the work of these batches.

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "data/loading/loader.h"

namespace fsdp::train {

/// Speed of training alone: the time of validation and saving does not count.
class StepMeter {
 public:
  using Clock = std::chrono::steady_clock;

  struct Reading {
    double tokens_per_second = 0.0;
    double step_seconds = 0.0;  ///< mean of a step
    int64_t steps = 0;          ///< steps since the last reading
  };

  void start(int64_t step, int64_t tokens, Clock::time_point now = Clock::now()) {
    since_ = now;
    step_ = step;
    tokens_ = tokens;
  }

  /// Excludes the time between pause() and go_on().
  void pause(Clock::time_point now = Clock::now()) { paused_at_ = now; }
  void go_on(Clock::time_point now = Clock::now()) { since_ += now - paused_at_; }

  /// Returns the speed since the last reading, or the start, and begins the next reading.
  Reading read(int64_t step, int64_t tokens, Clock::time_point now = Clock::now()) {
    const Reading reading = peek(step, tokens, now);
    start(step, tokens, now);
    return reading;
  }

  /// Returns what read() would return.
  Reading peek(int64_t step, int64_t tokens, Clock::time_point now = Clock::now()) const {
    const double seconds = std::chrono::duration<double>(now - since_).count();
    return {static_cast<double>(tokens - tokens_) / seconds, seconds / static_cast<double>(step - step_),
            step - step_};
  }

 private:
  Clock::time_point since_, paused_at_;
  int64_t step_ = 0;
  int64_t tokens_ = 0;
};

/// Batches of another source, which must outlive the object. Measures the training thread's wait for them,
/// and their work. Not thread-safe.
class TimedBatches final : public data::BatchSource {
 public:
  explicit TimedBatches(const data::BatchSource& source) : source_(source) {}

  data::Batch batch(int64_t first_global_sample, int64_t micro_batch) const override {
    const auto begin = Clock::now();
    data::Batch batch = source_.batch(first_global_sample, micro_batch);
    waited_ += Clock::now() - begin;
    if (work_of_) work_ += work_of_(batch);
    return batch;
  }

  /// Sets the function that counts the work of a batch.
  void count_work(std::function<double(const data::Batch&)> work_of) { work_of_ = std::move(work_of); }
  /// Returns the work of all batches since count_work().
  double work() const { return work_; }

  /// Returns the seconds of waiting since the beginning.
  double waited_seconds() const { return std::chrono::duration<double>(waited_).count(); }
  /// Returns the seconds of waiting since the last call, or the beginning.
  double take_seconds() const {
    const auto taken = std::exchange(taken_, waited_);
    return std::chrono::duration<double>(waited_ - taken).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const data::BatchSource& source_;
  mutable Clock::duration waited_{}, taken_{};
  std::function<double(const data::Batch&)> work_of_;
  mutable double work_ = 0;
};

}  // namespace fsdp::train
