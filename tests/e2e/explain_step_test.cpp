// fsdp-train --explain-step through the launcher.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/util/error.h"
#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

class ExplainStep : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 2000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  testing::ProgramResult explain(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--explain-step", "run.output_dir=" + (folder_ / "out").string(),
                                         "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"});
    return launch_training(2, folder_ / "config.toml", arguments);
  }

  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ExplainStep, PrintsOneRanksTimelineAndTheFormulaAndWritesNothing) {
  auto result = explain({});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.out, "2 ranks over shm, full_shard"), 1) << result.out;
  for (const char* unit : {"root", "model.layers.0", "model.layers.1", "model.layers.2"}) {
    EXPECT_NE(result.out.find("  " + std::string(unit) + " "), std::string::npos) << result.out;
  }
  EXPECT_EQ(count(result.out, "  equal\n"), 9) << result.out;
  EXPECT_EQ(count(result.out, "  within the bound\n"), 1) << result.out;
  EXPECT_EQ(count(result.out, "[rank1]"), 0) << "one rank speaks";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(ExplainStep, ShowsAllEventsOnRequest) {
  auto shortened = explain({"training.gradient_accumulation_steps=4"});
  auto whole = explain({"training.gradient_accumulation_steps=4", "--all-units"});
  EXPECT_NE(shortened.out.find("not shown: micro-batches 1 to 3 of 4"), std::string::npos) << shortened.out;
  EXPECT_EQ(count(whole.out, "not shown"), 0) << whole.out;
  EXPECT_GT(count(whole.out, " gathered "), 2 * count(shortened.out, " gathered "));
}

TEST_F(ExplainStep, WritesATimelineOnRequest) {
  const auto result = explain({"--timeline", (folder_ / "step.json").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(folder_ / "step.json");
  const nlohmann::json events = nlohmann::json::parse(file);
  EXPECT_GT(events.size(), 20u);
  const auto refused = explain({"--timeline", (folder_ / "step.json/in.json").string()});
  EXPECT_EQ(refused.exit_code, static_cast<int>(ErrorKind::kIo)) << refused.err;
  EXPECT_NE(refused.err.find("step.json/in.json: Not a directory"), std::string::npos) << refused.err;
}

TEST_F(ExplainStep, AllUnitsAloneIsAMistakeOfUse) {
  auto result = testing::run({program("fsdp-train"), (folder_ / "config.toml").string(), "--all-units"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--explain-step"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace fsdp::e2e
