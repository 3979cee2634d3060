// fsdp-train without a launcher: signals, and output that nobody reads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/programs.h"
#include "state/manifest/folders.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using testing::eventually;
using testing::ProgramResult;
using testing::RunningProgram;

class Alone : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> command(const std::string& steps, std::vector<std::string> before = {}) const {
    for (const std::string& word :
         {program("fsdp-train"), (folder_ / "config.toml").string(),
          "run.output_dir=" + (folder_ / "out").string(),
          "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", "training.steps=" + steps,
          std::string("checkpoint.interval_steps=1000000")}) {
      before.push_back(word);
    }
    return before;
  }
  bool trains() const {
    return eventually(
        [&] {
          std::error_code error;
          return std::filesystem::file_size(folder_ / "out" / "metrics.jsonl", error) > 0 && !error;
        },
        30);
  }
  size_t checkpoints() const { return checkpoint::find_checkpoints(folder_ / "out").complete.size(); }

  const testing::RunOptions kOptions{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 90};
  testing::TemporaryFolder folder_;
};

TEST_F(Alone, SavesAtEachSignalThatTellsARunToStop) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
    std::filesystem::remove_all(folder_ / "out");
    RunningProgram program(command("1000000"), kOptions);
    ASSERT_TRUE(trains());
    program.send(signal);
    EXPECT_EQ(program.wait().exit_code, 75) << signal << program.err();
    EXPECT_EQ(checkpoints(), 1u) << signal;
  }
}

TEST_F(Alone, SavesUnderTheTimeoutOfGnuWhichSignalsTwice) {
  const ProgramResult result =
      testing::run(command("1000000", {"timeout", "--preserve-status", "6"}), kOptions);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_EQ(checkpoints(), 1u);
}

TEST_F(Alone, GoesOnWhenTheReaderOfItsOutputHasEnded) {
  const std::string code = folder_ / "code";
  testing::run(command("40", {"/bin/sh", "-c", R"({ "$@" 2>&1; echo $? >)" + code + "; } | head -n 1", "sh"}),
               kOptions);
  EXPECT_EQ(folder_.read("code"), "0\n");
  EXPECT_EQ(checkpoints(), 1u);
}

TEST_F(Alone, PrintsIntoNoFileWhenItsStandardDescriptorsAreClosed) {
  testing::run(command("40", {"/bin/sh", "-c", R"(exec "$@" <&- >&- 2>&-)", "sh"}), kOptions);
  EXPECT_EQ(checkpoints(), 1u);
  std::ifstream metrics(folder_ / "out" / "metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
  EXPECT_EQ(lines, 40);
}

}  // namespace
}  // namespace fsdp::e2e
