// fsdp-train --profile-start through the launcher.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;

class ProfileStart : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 2000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--profile-start", "run.output_dir=" + (folder_ / "out").string(),
                               "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"});
    return more;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ProfileStart, GoesFromTheLaunchersStartToTheFirstStep) {
  const auto result = launch_training(2, folder_ / "config.toml", arguments());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  size_t at = 0;
  for (const char* phase :
       {"fsdp-launch ", "loading of the program", "initializers of libraries", "connection of the ranks",
        "first weights", "rate of matrix products", "first step ", "total "}) {
    at = result.out.find(phase, at);
    ASSERT_NE(at, std::string::npos) << phase << "\n" << result.out;
  }
  EXPECT_EQ(result.out.find("[rank1]"), std::string::npos) << "one rank speaks";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(ProfileStart, IsOneJsonObjectOnRequest) {
  std::vector<std::string> command = {program("fsdp-train"), (folder_ / "config.toml").string()};
  const std::vector<std::string> more = arguments({"--json"});
  command.insert(command.end(), more.begin(), more.end());
  const auto result = testing::run(command, {.timeout_seconds = 60});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  double sum = 0;
  for (const auto& phase : json["phases"]) {
    EXPECT_GE(phase["seconds"], 0) << phase;
    sum += phase["seconds"].get<double>();
  }
  EXPECT_NEAR(sum, json["seconds"], 1e-9);
  EXPECT_LT(json["seconds"], 60);
  EXPECT_EQ(json["phases"][0]["name"], "loading of the program and its libraries");
}

TEST_F(ProfileStart, IsNotAskedForWithAnotherReport) {
  for (const char* other : {"--plan", "--explain-step", "--print-config"}) {
    std::vector<std::string> command = {program("fsdp-train"), (folder_ / "config.toml").string()};
    const std::vector<std::string> more = arguments({other});
    command.insert(command.end(), more.begin(), more.end());
    const auto result = testing::run(command, {.timeout_seconds = 60});
    EXPECT_EQ(result.exit_code, 2) << other;
    EXPECT_THAT(result.err, HasSubstr("found both; leave one out")) << result.err;
  }
}

}  // namespace
}  // namespace fsdp::e2e
