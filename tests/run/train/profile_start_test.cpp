#include "run/train/profile_start.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/api/communicator.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {
namespace {

class ProfileStart : public ::testing::Test {
 protected:
  std::vector<util::StartPhase> profile() {
    comm::SingleCommunicator alone;
    util::begin_start_record({{"loading", 0.5}}, util::monotonic_seconds());
    return profile_start(config_, testing::borrowed(alone));
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(ProfileStart, EndsWithTheFirstStep) {
  const std::vector<util::StartPhase> phases = profile();
  ASSERT_FALSE(phases.empty());
  EXPECT_EQ(phases.back().name, "first step");
  EXPECT_GT(phases.back().seconds, 0);
  for (const char* name :
       {"loading", "data", "model", "first weights", "shards", "optimizer", "output folder and log"}) {
    const auto is_it = [&](const util::StartPhase& phase) { return phase.name == name && phase.seconds > 0; };
    EXPECT_EQ(std::ranges::count_if(phases, is_it), 1) << name;
  }
}

TEST_F(ProfileStart, LeavesTheRunsFolderAlone) {
  config_.checkpoint.interval_steps = 1;
  config_.checkpoint.save_at_end = true;
  profile();
  EXPECT_FALSE(std::filesystem::exists(config_.run.output_dir));
}

TEST_F(ProfileStart, SaysHowLongItTookToTheFirstStep) {
  const std::vector<util::StartPhase> phases = {{"loading", 0.25}, {"first step", 0.75}};
  const nlohmann::json json = nlohmann::json::parse(start_json(phases));
  EXPECT_EQ(json["seconds_to_first_step"], 0.25);
  EXPECT_EQ(json["seconds"], 1.0);
  EXPECT_EQ(json["phases"][1]["name"], "first step");
  const std::string text = start_text(phases);
  EXPECT_NE(text.find("loading                                           0.250 s  25.0 %\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("total                                             1.000 s 100.0 %\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace fsdp::train
