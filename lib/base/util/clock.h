#pragma once

// Seconds as a double, on the steady clock, and the wall clock as text.

#include <chrono>
#include <string>

namespace fsdp::util {

inline std::chrono::steady_clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

inline double seconds_since(std::chrono::steady_clock::time_point moment) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - moment).count();
}

/// Returns a wall-clock time in UTC by ISO 8601: "2026-02-03T04:05:06.789Z".
std::string utc_text(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

}  // namespace fsdp::util
