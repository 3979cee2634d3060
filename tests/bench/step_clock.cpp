// step_clock: the exposed communication that a plan gives a step (tools/plan/time.h) against that of the
// engine, on a communicator whose collectives really take a set latency and bandwidth, and with stages that
// really take their time; for each option that changes the order. Both sleep, so that other programs disturb
// them little, and long enough that a wake-up (some 0.1 ms, and several per collective) counts little. Not a
// test: figures of a machine vary, so they are printed and not judged. tests/run/train/step_clock_test.cpp
// compares the two in virtual time.

#include <cstdio>

#include "support/timed_step.h"

int main() {
  fsdp::testing::TimedStep base;
  base.layers = 6;
  base.forward = 0.024;
  base.backward = 0.048;
  // An all-gather of a layer, 64 elements over 2 ranks, takes 4 + 32 ms; over replicas 4 + 26 ms.
  base.speed = {.bytes_per_second = 4e3, .replica_bytes_per_second = 5e3, .latency_seconds = 4e-3};
  std::printf("%-50s %12s %12s %8s\n", "exposed communication of a step, ms", "planned", "measured",
              "off by");
  for (const auto& [name, step] : fsdp::testing::timed_variants(base)) {
    const auto [measured, planned] = really_timed(step, step.mesh.dcn == 2 ? 4 : 2);
    std::printf("%-50s %12.1f %12.1f %7.1f%%\n", name.c_str(), 1e3 * planned.exposed, 1e3 * measured.exposed,
                100 * (measured.exposed / planned.exposed - 1));
  }
}
