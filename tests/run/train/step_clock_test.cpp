// The seconds that a plan gives a step against those of an engine whose compute and collectives take set
// times. tests/bench/step_clock.cpp does the same with a communicator that really takes them.

#include <gtest/gtest.h>

#include "support/timed_step.h"
#include "tools/plan/time.h"

namespace fsdp::train {
namespace {

using testing::TimedResult;
using testing::TimedStep;

/// Compute that hides some collectives wholly, some in part.
TimedStep step_of(double latency) {
  TimedStep step;
  step.speed = {.bytes_per_second = 1000, .replica_bytes_per_second = 400, .latency_seconds = latency};
  step.forward = 0.15;  // an all-gather takes 0.256 s, or 0.192 of half as many ranks
  step.backward = 0.4;
  return step;
}

TEST(StepClock, GivesTheExposedCommunicationOfTheEngineForEachOrder) {
  for (double latency : {0.0, 0.05}) {
    for (const auto& [name, step] : testing::timed_variants(step_of(latency))) {
      const TimedResult result = testing::virtually_timed(step, 4);
      EXPECT_NEAR(result.planned.computed, result.measured.computed, 1e-9) << name;
      EXPECT_NEAR(result.planned.exposed, result.measured.exposed, 1e-9) << name << ", latency " << latency;
      EXPECT_GT(result.measured.exposed, 0.1) << name;
    }
  }
}

TEST(StepClock, OrdersDiffer) {
  const auto exposed = [](auto change) {
    TimedStep step = step_of(0);
    step.options.min_num_params = 1;
    step.backward = 0.1;
    change(step.options);
    return testing::virtually_timed(step, 4).planned.exposed;
  };
  const double usual = exposed([](auto&) {});
  EXPECT_GT(exposed([](auto& o) { o.forward_prefetch = "none"; }), usual + 0.1);
  EXPECT_GT(exposed([](auto& o) { o.backward_prefetch = "none"; }), usual + 0.1);
  EXPECT_LT(exposed([](auto& o) { o.reshard_after_forward = false; }), usual - 0.1);
}

// With "post" the gather of a unit is behind the reduction of the one before, for which the unit need not
// wait. Both groups share the link, so it is the shorter gathers that end earlier.
TEST(StepClock, AGroupOfItsOwnTakesReductionsOutOfTheWayOfGathers) {
  TimedStep step = step_of(0);
  step.options.min_num_params = 1;
  step.options.backward_prefetch = "post";
  step.options.mixed_precision.param_dtype = "bfloat16";
  const double in_one_queue = testing::virtually_timed(step, 4).planned.exposed;
  step.options.reduce_scatter_group = true;
  EXPECT_LT(testing::virtually_timed(step, 4).planned.exposed, in_one_queue - 0.01);
}

}  // namespace
}  // namespace fsdp::train
