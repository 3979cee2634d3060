#pragma once

// File descriptors, and the time-outs with which poll() waits for them.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "base/util/descriptor.h"

namespace fsdp::launch {

using util::Descriptor;

/// Milliseconds until `due`, rounded up; 0 if it has passed.
inline int milliseconds_until(std::chrono::steady_clock::time_point due) {
  const auto left = due - std::chrono::steady_clock::now();
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, std::numeric_limits<int>::max()));
}

/// The shorter of two time-outs. -1: no time-out.
inline int sooner(int a, int b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

}  // namespace fsdp::launch
