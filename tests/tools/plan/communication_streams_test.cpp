#include "tools/plan/communication_streams.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdp::plan {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

/// When the job ends, counted from now.
double until(CommunicationStreams& streams, CommunicationStreams::Job job) {
  double seconds = 0;
  while (!streams.is_done(job)) seconds += streams.pass(kForever);
  return seconds;
}

TEST(CommunicationStreams, RunEachStreamInOrder) {
  CommunicationStreams streams;
  const auto first = streams.issue(1, 0, 2), second = streams.issue(1, 0, 3);
  EXPECT_FALSE(streams.is_done(first));
  EXPECT_DOUBLE_EQ(until(streams, second), 5);
  EXPECT_TRUE(streams.is_done(first));
  EXPECT_TRUE(streams.is_done(0)) << "none";
}

TEST(CommunicationStreams, PassNoMoreThanAskedFor) {
  CommunicationStreams streams;
  const auto job = streams.issue(1, 0, 2);
  EXPECT_DOUBLE_EQ(streams.pass(0.5), 0.5);
  EXPECT_DOUBLE_EQ(streams.pass(10), 1.5) << "until the first ends";
  EXPECT_TRUE(streams.is_done(job));
  EXPECT_DOUBLE_EQ(streams.pass(10), 10);
}

// 4 s and 1 s beside each other: the shorter one ends after 2 s, the longer one in 5 s, as one after the
// other.
TEST(CommunicationStreams, OfOneLinkShareItEqually) {
  CommunicationStreams streams;
  const auto longer = streams.issue(1, 0, 4), shorter = streams.issue(2, 0, 1);
  EXPECT_DOUBLE_EQ(until(streams, shorter), 2);
  EXPECT_DOUBLE_EQ(until(streams, longer), 3);
}

TEST(CommunicationStreams, OfTwoLinksDoNotSlowEachOtherDown) {
  CommunicationStreams streams;
  const auto longer = streams.issue(1, 0, 4), shorter = streams.issue(2, 1, 1);
  EXPECT_DOUBLE_EQ(until(streams, shorter), 1);
  EXPECT_DOUBLE_EQ(until(streams, longer), 3);
}

TEST(CommunicationStreams, BeginWhenWhatTheyNeedIsDone) {
  CommunicationStreams streams;
  const auto needed = streams.issue(1, 0, 4), after = streams.issue(2, 1, 1, needed);
  EXPECT_DOUBLE_EQ(until(streams, after), 5);
}

}  // namespace
}  // namespace fsdp::plan
