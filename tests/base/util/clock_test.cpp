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

}  // namespace
}  // namespace fsdp::util
