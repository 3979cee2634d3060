// fsdp-train --explain-step through the launcher.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/util/error.h"
#include "e2e/programs.h"
#include "support/free_port.h"

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

  /// The output without the rank before each line.
  static std::string without_ranks(const std::string& text) {
    std::istringstream lines(text);
    std::string result;
    for (std::string line; std::getline(lines, line);) {
      const std::string_view prefix = "[rank0] ";
      result += (line.starts_with(prefix) ? line.substr(prefix.size()) : line) + "\n";
    }
    return result;
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

TEST_F(ExplainStep, CountsTheBytesBetweenHosts) {
  const std::string port = std::to_string(testing::free_port());
  const auto explained_on_two_hosts = [&](const std::vector<std::string>& more) {
    std::vector<std::unique_ptr<testing::RunningProgram>> hosts;
    for (const char* rank : {"1", "0"}) {
      std::vector<std::string> command{program("fsdp-launch"), "--nnodes", "2", "--node-rank", rank,
                                       "--master-port",        port,       "--"};
      command.insert(command.end(),
                     {program("fsdp-train"), (folder_ / "config.toml").string(), "--explain-step",
                      "run.output_dir=" + (folder_ / "out").string(),
                      "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", "comm.backend=gloo"});
      command.insert(command.end(), more.begin(), more.end());
      hosts.push_back(std::make_unique<testing::RunningProgram>(
          command, testing::RunOptions{.env = {{"OMP_NUM_THREADS", "1"}}}));
    }
    hosts.front()->wait();
    return hosts.back()->wait();
  };
  testing::ProgramResult result = explained_on_two_hosts({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(without_ranks(result.out));
  // On two hosts of one rank each, the payload of a collective is what the host receives.
  int64_t payloads = 0;
  for (const auto& row : json.at("rows")) {
    const std::string name = row.at("name");
    if (name.ends_with(", bytes")) payloads += row.at("measured").get<int64_t>();
  }
  const int64_t counted = json.at("bytes_from_other_hosts");
  EXPECT_GE(counted, payloads);
  EXPECT_LE(counted, payloads + 100) << "loss and norm too";
  EXPECT_GT(payloads, 100'000);

  result = explained_on_two_hosts({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("each of 2 hosts receives "), std::string::npos) << result.out;
  EXPECT_EQ(explain({}).out.find("from other hosts"), std::string::npos) << "on one host";
}

TEST_F(ExplainStep, AllUnitsAloneIsAMistakeOfUse) {
  auto result = testing::run({program("fsdp-train"), (folder_ / "config.toml").string(), "--all-units"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--explain-step"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace fsdp::e2e
