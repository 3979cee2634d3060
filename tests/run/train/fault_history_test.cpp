#include "run/train/fault_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>

#include "base/util/file.h"
#include "run/train/trainer.h"
#include "support/trainer_fixture.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kHour = 3600;

TEST(FaultHistory, CountsStartsThatDidNotEnd) {
  testing::TemporaryFolder folder;
  {
    FaultHistory first(folder.path(), true);
    EXPECT_EQ(first.faults(), 0);
    first.note(100);
    first.note(250);
    EXPECT_EQ(first.seconds(), 250);
  }
  {
    FaultHistory second(folder.path(), true);
    EXPECT_EQ(second.faults(), 1) << "the first start was killed";
    EXPECT_EQ(second.seconds(), 250);
    second.note(10);
    second.end(50);
  }
  const FaultHistory third(folder.path(), true);
  EXPECT_EQ(third.faults(), 1);
  EXPECT_EQ(third.seconds(), 300);
}

TEST(FaultHistory, GoesOnWithAStartThatOtherRanksContinue) {
  testing::TemporaryFolder folder;
  { FaultHistory(folder.path(), true).note(40); }
  EXPECT_EQ(FaultHistory(folder.path(), false).faults(), 0);
}

TEST(FaultHistory, BeginsAnewWithAFileThatNoRunHasWritten) {
  testing::TemporaryFolder folder;
  for (const std::string text :
       {"", "{", "[]", "null", "{\"faults\": \"a\", \"seconds\": 1, \"running\": true}",
        "{\"faults\": 1, \"seconds\": 1}", "{\"faults\": 1.5e300, \"seconds\": null, \"running\": 1}"}) {
    std::ofstream(folder / "starts.json") << text;
    const FaultHistory history(folder.path(), true);
    EXPECT_EQ(history.faults(), 0) << text;
    EXPECT_EQ(history.seconds(), 0) << text;
  }
  std::ofstream(folder / "starts.json") << R"({"faults": -3, "seconds": 1e300, "running": false})";
  const FaultHistory extreme(folder.path(), true);
  EXPECT_EQ(extreme.faults(), 0);
  EXPECT_EQ(extreme.seconds(), 1e9);
}

TEST(FaultHistory, LacksAFolderWithoutAnError) {
  FaultHistory history("/nonexistent/folder", true);
  history.note(1);
  history.end(2);
  EXPECT_EQ(history.seconds(), 2);
}

TEST(FaultHistory, ExpectsItsFaultsAndAnAssumedOne) {
  EXPECT_DOUBLE_EQ(assumed_seconds_of_a_fault(2), 24 * kHour);
  EXPECT_NEAR(assumed_seconds_of_a_fault(16384), 54 * 24 * kHour / 419, 1);
  testing::TemporaryFolder folder;
  std::ofstream(folder / "starts.json") << R"({"faults": 3, "seconds": 57600, "running": false})";
  const FaultHistory history(folder.path(), true);
  EXPECT_DOUBLE_EQ(expected_faults(history, 2, 1.5).mean_seconds, 10 * kHour)
      << "24 and 16 hours, four faults";
  EXPECT_DOUBLE_EQ(expected_faults(history, 2, 1.5).checkpoint_seconds, 1.5);
}

TEST(FaultHistory, AdvisesTheIntervalOfYoungAndDalyWhereItSavesMuch) {
  testing::TemporaryFolder folder;
  std::ofstream(folder / "starts.json") << R"({"faults": 2, "seconds": 22320, "running": false})";
  const FaultHistory history(folder.path(), true);
  const simulate::Faults faults{.mean_seconds = 3.1 * kHour, .checkpoint_seconds = 1.2};
  const double young = std::sqrt(2 * faults.checkpoint_seconds * faults.mean_seconds);
  EXPECT_NEAR(simulate::best_interval(faults, 0.1), young, 0.02 * young);
  EXPECT_EQ(advice_text(history, faults, 1.5 * young, 0.1), "")
      << "no interval near the best is worth a line";
  const std::string text = advice_text(history, faults, 30 * 60, 0.1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("a save delays training by 1.20 s, and the run has failed 2 times in 6h12m"),
                    HasSubstr("a save every 2m43s would lose least, 1.5 % of the time"),
                    HasSubstr("every 30m00s, as now, loses 7.9 %")));
  EXPECT_THAT(advice_text(history, faults, 0.3, 0.3), HasSubstr("every 300.0 ms, as now"));
}

class CostOfSaves : public TrainerTest {
 protected:
  std::string log_of(const config::Config& config) {
    std::string lines;
    std::mutex mutex;
    util::set_log_level(util::LogLevel::kInfo);
    util::set_log_sink([&](util::LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.append(line).append("\n");
    });
    train(2, config);
    util::set_log_sink({});
    util::set_log_level(util::LogLevel::kOff);
    return lines;
  }
  std::string starts() { return util::read_file(folder_ / "out/starts.json"); }
};

TEST_F(CostOfSaves, IsComparedWithTheFaultsOfTheRunOnce) {
  config_.training.steps = 12;
  config_.checkpoint.interval_steps = 1;
  const std::string lines = log_of(config_);
  const size_t found = lines.find("a save delays training by ");
  ASSERT_NE(found, std::string::npos) << "a save in each step of milliseconds costs most of the time\n"
                                      << lines;
  EXPECT_EQ(lines.find("a save delays", found + 1), std::string::npos) << lines;
  EXPECT_THAT(lines.substr(found),
              AllOf(HasSubstr("the run has failed 0 times"), HasSubstr("as now, loses")));
  EXPECT_THAT(starts(), AllOf(HasSubstr("\"faults\":0"), HasSubstr("\"running\":false")));
}

TEST_F(CostOfSaves, ChoosesTheIntervalOfSaves) {
  config_.training.steps = 12;
  config_.checkpoint.schedule = "auto";
  config_.checkpoint.keep_every = 2;  // saves before the first interval is over
  const std::string lines = log_of(config_);
  EXPECT_THAT(lines, HasSubstr(": it is saved every ")) << lines;
}

TEST_F(CostOfSaves, OfARunThatFailedCountsTheFault) {
  config_.training.steps = 20;
  config_.optimizer.lr = 1e30;
  config_.training.max_grad_norm = 0;
  config_.checkpoint.interval_steps = 1;
  EXPECT_EQ(failure(2, config_, "diverged"), ErrorKind::kDiverged);
  EXPECT_THAT(starts(), HasSubstr("\"running\":true"));
  EXPECT_EQ(failure(2, config_, "diverged"), ErrorKind::kDiverged);
  EXPECT_THAT(starts(), HasSubstr("\"faults\":1"));
}

}  // namespace
}  // namespace fsdp::train
