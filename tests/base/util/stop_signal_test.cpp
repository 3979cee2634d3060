#include "base/util/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

namespace fsdp::util {
namespace {

TEST(StopSignal, RemembersTheFirstSignal) {
  StopSignal stop;
  EXPECT_FALSE(StopSignal::received().has_value());
  raise(SIGUSR1);
  EXPECT_EQ(StopSignal::received(), SIGUSR1);
  raise(SIGUSR1);
  EXPECT_EQ(StopSignal::received(), SIGUSR1);
}

TEST(StopSignal, TakesEverySignalThatTellsARunToStop) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    StopSignal stop;
    raise(signal);
    EXPECT_EQ(StopSignal::received(), signal);
  }
}

TEST(StopSignal, LeavesAHangupIgnoredUnderNohup) {
  auto* before = signal(SIGHUP, SIG_IGN);
  {
    StopSignal stop;
    raise(SIGHUP);
    EXPECT_FALSE(StopSignal::received().has_value());
  }
  signal(SIGHUP, before);
}

TEST(StopSignal, TakesSignalsWithinASecondForOneRequest) {
  StopSignal stop;
  raise(SIGTERM);
  raise(SIGTERM);
  raise(SIGINT);
  EXPECT_EQ(StopSignal::received(), SIGTERM) << "GNU timeout signals a program and its process group";
}

TEST(StopSignal, RestoresWhatWasBefore) {
  static int handled;
  handled = 0;
  auto* before = signal(SIGTERM, [](int) { ++handled; });
  { StopSignal stop; }
  raise(SIGTERM);
  EXPECT_EQ(handled, 1);
  signal(SIGTERM, before);
}

TEST(StopSignal, StartsAfreshEachTime) {
  {
    StopSignal stop;
    raise(SIGTERM);
  }
  StopSignal stop;
  EXPECT_FALSE(StopSignal::received().has_value());
}

TEST(StopSignal, OutlivesASecondSignalWhereThatIsIgnored) {
  StopSignal stop(StopSignal::Repeated::kIsIgnored);
  raise(SIGTERM);
  raise(SIGTERM);
  raise(SIGINT);
  EXPECT_EQ(StopSignal::received(), SIGTERM);
}

TEST(StopSignal, TakesOverWhatCameBeforeItWasMade) {
  StopSignal::begin_early();
  raise(SIGTERM);
  raise(SIGINT);
  {
    StopSignal stop;
    EXPECT_EQ(StopSignal::received(), SIGTERM);
  }
  static int handled;
  handled = 0;
  auto* before = signal(SIGTERM, [](int) { ++handled; });
  StopSignal::begin_early();
  raise(SIGTERM);
  EXPECT_EQ(handled, 0);
  StopSignal::end_early();
  EXPECT_EQ(handled, 1);
  signal(SIGTERM, before);
}

using StopSignalDeathTest = ::testing::Test;

TEST(StopSignalDeathTest, ASecondTermEndsTheProcess) {
  auto twice = [](int first, int second) {
    StopSignal stop;
    raise(first);
    std::this_thread::sleep_for(kOneRequest + std::chrono::milliseconds(100));
    raise(second);
    std::exit(0);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(twice(SIGUSR1, SIGINT), ::testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(twice(SIGINT, SIGUSR1), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fsdp::util
