#include "run/train/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "base/util/file.h"
#include "base/util/log.h"
#include "support/temporary_folder.h"

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

class WatchdogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_sink([this](util::LogLevel, std::string_view line) {
      if (!told_) said_.set_value(std::string(line));
      told_ = true;
    });
  }
  void TearDown() override { util::set_log_sink({}); }

  WatchdogOptions options() { return {.rank = 2, .timeout_seconds = 0.2, .report_file = file_}; }
  nlohmann::json report() { return nlohmann::json::parse(util::read_file(file_)); }
  std::string next_line() {
    auto line = said_.get_future();
    if (line.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return "nothing was said";
    return line.get();
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "error.json";
  std::shared_ptr<comm::Activity> activity_ = std::make_shared<comm::Activity>();
  std::promise<std::string> said_;
  bool told_ = false;
};

TEST_F(WatchdogTest, ReportsARankThatComputesForTooLong) {
  activity_->end_collective(activity_->begin_collective("all_gather", {.unit = "root", .pass = "forward"}));
  activity_->begin_step(4);
  Watchdog watchdog(activity_, options());
  EXPECT_THAT(next_line(), HasSubstr("rank 2 makes no progress: computing, step 4"));
}

TEST_F(WatchdogTest, EndsACollectiveThatDoesNotTimeOutByItself) {
  // The grace is ten seconds, so the collective must have begun before.
  activity_->begin_collective("all_gather", {.unit = "root", .pass = "forward"});
  std::promise<void> stuck;
  WatchdogOptions options = this->options();
  options.timeout_seconds = -10;
  options.on_stuck_collective = [&] { stuck.set_value(); };
  Watchdog watchdog(activity_, options);
  ASSERT_EQ(stuck.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_THAT(next_line(), HasSubstr("rank 2 is stuck in all_gather of root (forward)"));
  EXPECT_EQ(report()["collective"], "all_gather of root (forward)");
}

TEST_F(WatchdogTest, CallsWhatWantsToLookToo) {
  std::promise<void> looked;
  WatchdogOptions options = this->options();
  options.on_look = [&, looks = 0]() mutable {
    if (++looks == 3) looked.set_value();
  };
  Watchdog watchdog(activity_, options);
  EXPECT_EQ(looked.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST_F(WatchdogTest, ReportsTheFirstFailure) {
  activity_->begin_step(9);
  Watchdog watchdog(activity_, options());
  watchdog.report_failure("first");
  watchdog.report_failure("second");
  EXPECT_EQ(report()["message"], "first");
  EXPECT_EQ(report()["rank"], 2);
  EXPECT_EQ(report()["step"], 9);
}

}  // namespace
}  // namespace fsdp::train
