#include "run/train/fault_injection.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/util/error.h"

namespace fsdp::train {
namespace {

class FaultInjectionTest : public ::testing::Test {
 protected:
  void TearDown() override {
    unsetenv("FSDP_INJECT_FAULT");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
  }
  FaultInjection faults(const char* text, int rank = 1) {
    setenv("FSDP_INJECT_FAULT", text, 1);
    return FaultInjection::from_environment(rank);
  }
};

TEST_F(FaultInjectionTest, HitsOneRankInOneStepAtOnePlace) {
  constexpr const char* kText = "rank=1,step=3,at=forward,do=throw";
  FaultInjection injection = faults(kText);
  EXPECT_TRUE(injection.is_due(FaultPlace::kForward, 3));
  EXPECT_FALSE(injection.is_due(FaultPlace::kForward, 2));
  EXPECT_FALSE(injection.is_due(FaultPlace::kSave, 3));
  EXPECT_NO_THROW(injection.at(FaultPlace::kStep, 3));
  EXPECT_THROW(injection.at(FaultPlace::kForward, 3), std::runtime_error);
  EXPECT_FALSE(faults(kText, 0).is_due(FaultPlace::kForward, 3));
}

TEST_F(FaultInjectionTest, HitsEachOfSeveralSteps) {
  const FaultInjection injection = faults("rank=1,step=3-5,at=step,do=throw");
  EXPECT_FALSE(injection.is_due(FaultPlace::kStep, 2));
  for (int64_t step = 3; step <= 5; ++step) EXPECT_TRUE(injection.is_due(FaultPlace::kStep, step)) << step;
  EXPECT_FALSE(injection.is_due(FaultPlace::kStep, 6));
}

TEST_F(FaultInjectionTest, AreAsManyAsTold) {
  constexpr const char* kText =
      "rank=1,step=3,at=step,do=throw;rank=0,step=4,at=step,do=throw;"
      "rank=1,step=5-6,at=transfer,do=throw";
  const FaultInjection injection = faults(kText);
  EXPECT_TRUE(injection.is_due(FaultPlace::kStep, 3));
  EXPECT_FALSE(injection.is_due(FaultPlace::kStep, 4));
  EXPECT_THROW(injection.at(FaultPlace::kTransfer, 6), std::runtime_error);
  EXPECT_TRUE(faults(kText, 0).is_due(FaultPlace::kStep, 4));
  EXPECT_THROW(faults("rank=1,step=3,at=step,do=kill;x"), util::Error);
}

TEST_F(FaultInjectionTest, HappenInOrderAtOnePlace) {
  const FaultInjection injection =
      faults("rank=1,step=3,at=validation,do=sleep:0.05;rank=1,step=3,at=validation,do=throw");
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(injection.at(FaultPlace::kValidation, 3), std::runtime_error);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(50));
}

TEST_F(FaultInjectionTest, DoesNotHappenAgainAfterARestart) {
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  EXPECT_FALSE(faults("rank=1,step=3,at=step,do=kill").is_due(FaultPlace::kStep, 3));
}

TEST_F(FaultInjectionTest, EndsTheProcessAsTold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // other tests have left threads
  EXPECT_EXIT(faults("rank=1,step=3,at=save,do=kill").at(FaultPlace::kSave, 3),
              ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(faults("rank=1,step=3,at=step,do=exit:3").at(FaultPlace::kStep, 3),
              ::testing::ExitedWithCode(3), "");
}

TEST_F(FaultInjectionTest, RefusesTextsOfAnotherForm) {
  for (const char* text : {"x", "rank=1", "rank=1,step=3,at=forward", "rank=1,step=3,at=nowhere,do=kill",
                           "rank=1,step=3,at=step,do=nothing", "rank=1,step=3,at=step,do=exit",
                           "rank=1,step=3,at=step,do=kill:3", "rank=-1,step=3,at=step,do=kill",
                           "rank=1,step=x,at=step,do=kill", "rank=1,step=3-,at=step,do=kill",
                           "rank=1,step=-3,at=step,do=kill", "rank=1,step=3,at=step,do=kill,x=1"}) {
    EXPECT_THROW(faults(text), util::Error) << text;
  }
  EXPECT_NO_THROW(faults(""));
}

}  // namespace
}  // namespace fsdp::train
