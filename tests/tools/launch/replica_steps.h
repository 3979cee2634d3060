#pragma once

// The arithmetic of replica_worker.cpp: what the state after a number of steps must be, whoever took part.

#include <cstdint>

namespace fsdp::testing {

inline constexpr int kSamplesOfStep = 24;

inline uint64_t mixed(uint64_t a, uint64_t b) {
  a ^= b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2);
  return a * 0xff51afd7ed558ccd;
}

/// What rank `rank` of `world_size` contributes to a step: its share of the samples. Sums of all do not
/// depend on the world size.
inline uint64_t contribution(int64_t step, int rank, int world_size) {
  uint64_t sum = 0;
  for (int sample = rank; sample < kSamplesOfStep; sample += world_size) {
    sum += mixed(static_cast<uint64_t>(step), static_cast<uint64_t>(sample));
  }
  return sum;
}

inline uint64_t state_after(int64_t steps) {
  uint64_t state = 0;
  for (int64_t step = 1; step <= steps; ++step) state = mixed(state, contribution(step, 0, 1));
  return state;
}

}  // namespace fsdp::testing
