#pragma once

// Times of what is repeated.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "util/clock.h"

namespace fsdp::doctor {

/// CPU time of all threads of this process.
inline double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The lower quartile of durations of `run`, which is repeated for so long, at least three times after a first one: what
/// else goes on in a machine only adds to them.
inline double steady_seconds(const std::function<void()>& run, double least_seconds = 0.05) {
  run();
  std::vector<double> seconds;
  double spent = 0;
  while (spent < least_seconds || seconds.size() < 3) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    seconds.push_back(util::seconds_since(begin));
    spent += seconds.back();
  }
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 4);
  return seconds[seconds.size() / 4];
}

}  // namespace fsdp::doctor
