// What users get wrong ends in one clear line, the agreed exit code, and nothing half-written.

#include <gtest/gtest.h>
#include <unistd.h>

#include "e2e/programs.h"
#include "support/free_port.h"

namespace fsdp::e2e {
namespace {

namespace fs = std::filesystem;

class BadInput : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 2000, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// Runs on two processes and checks exit code, the line, and that it is said once.
  void expect(int exit_code, const std::string& part, std::vector<std::string> overrides,
              const std::string& config = "config.toml") {
    overrides.insert(overrides.begin(), {"run.output_dir=" + (folder_ / "out").string(),
                                         "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"});
    auto result = launch_training(2, folder_ / config, overrides);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(count_lines_with(result.err, "error: ", part), 1) << result.err;
    EXPECT_FALSE(result.timed_out);
    EXPECT_FALSE(fs::exists(folder_ / "out")) << "left behind for " << part;
  }

  /// Lines of the first form that also hold the second, however the launcher repeats them in its account of
  /// the failure.
  static int count_lines_with(const std::string& text, const std::string& level, const std::string& part) {
    int count = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      bool worker_line = line.rfind("[rank", 0) == 0;
      count += worker_line && line.find(level) != std::string::npos && text.find(part) != std::string::npos;
    }
    return count;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(BadInput, NoConfig) { expect(2, "missing.toml", {}, "missing.toml"); }

TEST_F(BadInput, NoArguments) {
  auto result = testing::run({program("fsdp-train")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("config"), std::string::npos);
}

TEST_F(BadInput, UnknownKey) { expect(2, "training.steps", {"training.stps=3"}); }

TEST_F(BadInput, WrongType) { expect(2, "training.steps", {"training.steps=\"many\""}); }

TEST_F(BadInput, MissingTokenFile) { expect(3, "none.bin", {"data.train=[\"/nonexistent/none.bin\"]"}); }

TEST_F(BadInput, EmptyTokenFile) {
  std::ofstream(folder_ / "train.bin");
  expect(3, "train.bin", {});
}

TEST_F(BadInput, OddTokenFile) {
  std::ofstream(folder_ / "train.bin") << "abc";
  expect(3, "train.bin", {});
}

TEST_F(BadInput, TokenOverTheVocabulary) {
  testing::write_token_file(folder_ / "train.bin", 2000, 18);
  expect(3, "vocab_size", {});
}

TEST_F(BadInput, FewerSamplesThanABatch) { expect(3, "samples", {"data.micro_batch_size=100"}); }

TEST_F(BadInput, WorldThatDoesNotMatchTheMesh) { expect(2, "mesh", {"mesh.data=3"}); }

TEST_F(BadInput, OutputFolderThatCannotBeWritten) {
  std::ofstream(folder_ / "file") << "x";
  expect(7, "file/below", {"run.output_dir=" + (folder_ / "file/below").string()});
  expect(7, "/proc", {"run.output_dir=/proc/fsdp"});
}

TEST_F(BadInput, RankOutsideTheWorld) {
  auto result = testing::run({program("fsdp-train"), (folder_ / "config.toml").string()},
                             {.env = {{"RANK", "5"}, {"WORLD_SIZE", "2"}}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("RANK"), std::string::npos) << result.err;
}

TEST_F(BadInput, APeerThatNeverComesIsATimeout) {
  auto result = testing::run(
      {program("fsdp-train"), (folder_ / "config.toml").string(), "comm.timeout_seconds=2",
       "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"},
      {.env = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", std::to_string(testing::free_port())}}});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_NE(result.err.find("not all of the 2 processes arrived"), std::string::npos) << result.err;
  EXPECT_LT(result.seconds, 20);
}

}  // namespace
}  // namespace fsdp::e2e
