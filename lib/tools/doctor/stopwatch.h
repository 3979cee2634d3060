#pragma once

// Measures the time of repeated calls.

#include <time.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace fsdp::doctor {

inline double seconds_on(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
/// CPU time of all threads of this process.
inline double processor_seconds() { return seconds_on(CLOCK_PROCESS_CPUTIME_ID); }
/// CPU time of this thread.
inline double thread_seconds() { return seconds_on(CLOCK_THREAD_CPUTIME_ID); }
inline double wall_seconds() { return seconds_on(CLOCK_MONOTONIC); }

/// The seconds of each call of `run`, sorted. Repeats `run` for at least `least_seconds` and at least three
/// times, after a first call that is not measured.
inline std::vector<double> sorted_seconds(const std::function<void()>& run, double least_seconds) {
  run();
  std::vector<double> seconds;
  const double begin = wall_seconds();
  while (wall_seconds() - begin < least_seconds || seconds.size() < 3) {
    const double before = wall_seconds();
    run();
    seconds.push_back(wall_seconds() - before);
  }
  std::ranges::sort(seconds);
  return seconds;
}

/// The lower quartile of the seconds of `run`, because other load on the machine only adds to durations.
inline double steady_seconds(const std::function<void()>& run, double least_seconds = 0.05) {
  const std::vector<double> seconds = sorted_seconds(run, least_seconds);
  return seconds[seconds.size() / 4];
}

}  // namespace fsdp::doctor
