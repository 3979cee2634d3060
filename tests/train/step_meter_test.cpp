#include "train/step_meter.h"

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

}  // namespace
}  // namespace fsdp::train
