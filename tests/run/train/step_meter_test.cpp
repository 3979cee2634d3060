#include "run/train/step_meter.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(StepMeter, LeavesPausesOut) {
  StepMeter::Clock::time_point t{};
  auto at = [&](int seconds) { return t + std::chrono::seconds(seconds); };
  StepMeter meter;
  meter.start(10, 1000, at(0));
  meter.pause(at(4));
  meter.go_on(at(104));
  StepMeter::Reading reading = meter.read(12, 1600, at(106));
  EXPECT_DOUBLE_EQ(reading.tokens_per_second, 100.0);
  EXPECT_DOUBLE_EQ(reading.step_seconds, 3.0);
  EXPECT_DOUBLE_EQ(meter.read(13, 1700, at(107)).tokens_per_second, 100.0);
}

/// Takes some time, and tells how much of it passed.
class SlowSource final : public data::BatchSource {
 public:
  data::Batch batch(int64_t first_global_sample, int64_t micro_batch) const override {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    while (Clock::now() - begin < std::chrono::milliseconds(2)) {
    }
    data::Batch batch;
    batch.valid_rows = first_global_sample + micro_batch;
    return batch;
  }
};

TEST(TimedBatches, CountsTheTimeOfTheSourceSinceItWasAskedLast) {
  SlowSource source;
  TimedBatches batches(source);
  EXPECT_EQ(batches.take_seconds(), 0);
  EXPECT_EQ(batches.batch(40, 2).valid_rows, 42);
  batches.batch(0, 0);
  const double taken = batches.take_seconds();
  EXPECT_GE(taken, 0.004);
  EXPECT_EQ(batches.take_seconds(), 0);
  EXPECT_EQ(batches.waited_seconds(), taken);
  batches.batch(1, 0);
  EXPECT_GT(batches.waited_seconds(), taken);
}

}  // namespace
}  // namespace fsdp::train
