#include "base/util/start_clock.h"

#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <thread>

namespace fsdp::util {
namespace {

void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(StartClock, AddsUpTheTimeOfEachPhase) {
  const double begin = monotonic_seconds();
  begin_start_record({{"before", 2.0}}, begin);
  start_phase("a");
  pass(20);
  start_phase("b");
  pass(5);
  {
    const InnerStartPhase inner("weights");
    pass(30);
  }
  start_phase("a");
  pass(20);
  end_start_record();
  const double took = monotonic_seconds() - begin;
  start_phase("late");

  const std::vector<StartPhase> phases = start_record();
  ASSERT_EQ(phases.size(), 5);
  const char* names[] = {"before", "command line and config", "a", "b", "weights"};
  double sum = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    EXPECT_EQ(phases[i].name, names[i]);
    sum += phases[i].seconds;
  }
  EXPECT_EQ(phases[0].seconds, 2.0);
  EXPECT_GE(phases[2].seconds, 0.040);
  EXPECT_GE(phases[4].seconds, 0.030);
  EXPECT_NEAR(sum, 2.0 + took, 0.005);
}

TEST(StartClock, IsOfTheThreadThatBeganIt) {
  begin_start_record({}, monotonic_seconds());
  std::thread([] {
    start_phase("elsewhere");
    const InnerStartPhase inner("inside");
    EXPECT_TRUE(start_record().empty());
  }).join();
  EXPECT_EQ(start_record().size(), 1);
  end_start_record();
}

TEST(StartClock, KnowsTheAgeOfTheProcess) {
  timespec computed{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &computed);
  const double before = process_age_seconds();
  EXPECT_GE(before, static_cast<double>(computed.tv_sec) + 1e-9 * static_cast<double>(computed.tv_nsec));
  pass(100);
  EXPECT_GT(process_age_seconds(), 0.05);
  EXPECT_LT(process_age_seconds(), 3600);
}

}  // namespace
}  // namespace fsdp::util
