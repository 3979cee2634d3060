// fsdp-train --watch, in a terminal and elsewhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/util/error.h"
#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRestored = "\033[?25h\033[?1049l";

class Watch : public ::testing::Test {
 protected:
  std::vector<std::string> command() { return {program("fsdp-train"), "--watch", run_.string()}; }
  void append(int step) {
    std::ofstream(run_ / "metrics.jsonl", std::ios::app) << "{\"step\":" << step << ",\"loss\":4.25}\n";
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path run_ = folder_ / "run";
};

TEST_F(Watch, WaitsForTheRunAndRestoresTheTerminalOnASignal) {
  if (!testing::terminal_can_be_made()) GTEST_SKIP() << "no terminal can be made here";
  testing::RunningProgram watching(command(), {.terminal_columns = 80});
  ASSERT_TRUE(watching.wait_for("waiting for metrics.jsonl")) << watching.out();
  std::filesystem::create_directory(run_);
  append(3);
  ASSERT_TRUE(watching.wait_for("step 3")) << watching.out();
  append(4);
  ASSERT_TRUE(watching.wait_for("step 4")) << watching.out();
  watching.send(SIGTERM);
  const auto result = watching.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr(std::string(kRestored) + run_.string()));
}

TEST_F(Watch, EndsWithTheRun) {
  if (!testing::terminal_can_be_made()) GTEST_SKIP() << "no terminal can be made here";
  testing::write_token_file(folder_ / "train.bin", 2000, 17);
  std::ofstream(folder_ / "config.toml") << kOddModel;
  const auto trained = launch_training(2, folder_ / "config.toml",
                                       {"run.output_dir=" + run_.string(), "training.steps=4",
                                        "data.train=[\"" + (folder_ / "train.bin").string() + "\"]"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto result = testing::run(command(), {.terminal_columns = 80});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr(": finished, step 4 of 4, loss "));
}

TEST_F(Watch, PrintsTheViewOnceWhereThereIsNoTerminal) {
  std::filesystem::create_directory(run_);
  append(3);
  const auto result = testing::run(command());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("loss 4.2500"));
  EXPECT_EQ(result.out.find('\033'), std::string::npos);
}

TEST_F(Watch, RefusesAFolderThatIsNoRunsWhereThereIsNoTerminal) {
  const auto result = testing::run(command());
  EXPECT_EQ(result.exit_code, static_cast<int>(ErrorKind::kUsage));
  EXPECT_THAT(result.err, HasSubstr("there is no metrics.jsonl in "));
}

}  // namespace
}  // namespace fsdp::e2e
