#include "base/util/clock.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(Clock, KeepsFractionsOfASecond) {
  EXPECT_EQ(duration_of(1.5), milliseconds(1500));
  EXPECT_EQ(duration_of(0), milliseconds(0));
}

TEST(Clock, CountsSecondsFromAMoment) {
  EXPECT_GE(seconds_since(steady_clock::now() - milliseconds(2500)), 2.5);
  EXPECT_LT(seconds_since(steady_clock::now() + milliseconds(3'600'000)), 0);
}

TEST(Clock, WritesTimesInUtcByIso8601) {
  using std::chrono::system_clock;
  const system_clock::time_point epoch{};
  EXPECT_EQ(utc_text(epoch), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(epoch + std::chrono::seconds(1'700'000'000) + milliseconds(7)),
            "2023-11-14T22:13:20.007Z");
  EXPECT_EQ(utc_text(epoch - milliseconds(1)), "1969-12-31T23:59:59.999Z");
}

}  // namespace
}  // namespace fsdp::util
