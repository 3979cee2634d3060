// What a run of two ranks makes of a fault in one of them: an end in bounded time, its cause in one sentence,
// the right exit code; or, with restarts, the losses of a run that nothing happened to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/util/error.h"
#include "e2e/programs.h"
#include "state/manifest/folders.h"
#include "support/checkpoint_fixtures.h"
#include "support/tiny_config.h"

namespace fsdp::e2e {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::ProgramResult;

class InjectedFault : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  std::vector<std::string> command(const std::string& output, const std::vector<std::string>& launch_options,
                                   const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words{program("fsdp-launch"), "--nproc-per-node", "2", "--shutdown-timeout",
                                   "4"};
    words.insert(words.end(), launch_options.begin(), launch_options.end());
    for (const std::string& word :
         {std::string("--"), program("fsdp-train"), (folder_ / "config.toml").string(),
          "run.output_dir=" + (folder_ / output).string(),
          "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", std::string("training.steps=12"),
          std::string("checkpoint.interval_steps=4"), std::string("comm.timeout_seconds=3"),
          "comm.backend=" + backend_}) {
      words.push_back(word);
    }
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  ProgramResult run(const std::string& fault, const std::string& output = "out",
                    const std::vector<std::string>& launch_options = {}) const {
    return testing::run(
        command(output, launch_options),
        {.env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", fault}}, .timeout_seconds = 90});
  }

  std::vector<double> losses(const std::string& output = "out") const {
    return testing::values_of(folder_ / output / "metrics.jsonl", "loss");
  }

  testing::TemporaryFolder folder_;
  std::string backend_ = "auto";
};

class InjectedFaultOver : public InjectedFault, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    InjectedFault::SetUp();
    backend_ = GetParam();
  }
};

TEST_P(InjectedFaultOver, AKilledRankIsTheCauseWhereverItWas) {
  for (const char* place : {"forward", "collective", "save", "write"}) {
    SCOPED_TRACE(place);
    std::string out = concat("killed-", place);
    ProgramResult result = run(concat("rank=1,step=8,at=", place, ",do=kill"), out);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
    EXPECT_LT(result.seconds, 30);
    EXPECT_THAT(result.err, HasSubstr("failed first: it was ended by SIGKILL"));
    // What was saved before stays good.
    auto found = checkpoint::find_checkpoints(folder_ / out);
    ASSERT_FALSE(found.complete.empty());
    EXPECT_EQ(found.complete.back().step, 4);
  }
}

TEST_P(InjectedFaultOver, AStoppedRankTimesOutAndTheOthersReportWhereTheyAre) {
  for (const char* place : {"forward", "collective", "save", "write"}) {
    SCOPED_TRACE(place);
    ProgramResult result = run(concat("rank=1,step=8,at=", place, ",do=stop"), concat("stopped-", place));
    EXPECT_THAT(result.exit_code, AnyOf(5, 6)) << result.err;
    EXPECT_LT(result.seconds, 40);
    EXPECT_THAT(result.err, HasSubstr("no answer from rank 1"));
    EXPECT_THAT(result.err, HasSubstr("state of the workers on this node:\n    rank 0 (pid "));
    EXPECT_THAT(result.err, HasSubstr(": in "));
    EXPECT_THAT(result.err, HasSubstr("step 8"));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, InjectedFaultOver, ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return info.param; });

TEST_F(InjectedFault, AKilledRankDuringACopyLeavesTheCheckpointBefore) {
  ASSERT_EQ(run("", "undisturbed").exit_code, 0);
  const testing::RunOptions options{
      .env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", "rank=1,step=8,at=copy,do=kill"}},
      .timeout_seconds = 90};
  const ProgramResult result = testing::run(command("out", {}, {"checkpoint.asynchronous=true"}), options);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  const auto found = checkpoint::find_checkpoints(folder_ / "out");
  ASSERT_EQ(found.complete.size(), 1u);
  EXPECT_EQ(found.complete.back().step, 4);
  ASSERT_EQ(run("").exit_code, 0);
  EXPECT_EQ(losses(), losses("undisturbed"));
}

TEST_F(InjectedFault, ARankThatSleepsPastTheTimeOutSaysSo) {
  ProgramResult result = run("rank=1,step=3,at=forward,do=sleep:60");
  EXPECT_THAT(result.exit_code, AnyOf(5, 6)) << result.err;
  EXPECT_LT(result.seconds, 40);
  EXPECT_THAT(result.err, HasSubstr("rank 1 makes no progress: computing, step 3, "));
}

TEST_F(InjectedFault, TheExitCodeOfTheRankThatFailedFirstIsTheRuns) {
  ProgramResult result = run("rank=1,step=2,at=step,do=exit:3");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 (pid "));
  EXPECT_THAT(result.err, HasSubstr("failed first: it ended with exit code 3"));
}

/// It closes what it shares with the other before it ends, and must not be stopped in between.
TEST_F(InjectedFault, TheRankThatThrewIsNamedAndNotTheOneThatLostIt) {
  for (int i = 0; i < 4; ++i) {
    ProgramResult result = run("rank=1,step=2,at=collective,do=throw", concat("out", i));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: rank 1 (pid "));
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("failed first: it ended with exit code 5")));
  }
}

TEST_F(InjectedFault, ARankWithAnotherConfigIsNamedBeforeTraining) {
  std::vector<std::string> words = command("out", {});
  auto separator = std::find(words.begin(), words.end(), "--");
  words.insert(separator + 1, {"/bin/sh", "-c", "exec \"$@\" optimizer.lr=0.00$((RANK + 1))", "sh"});
  ProgramResult result = testing::run(words, {.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 60});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("but rank 1 on "));
  EXPECT_THAT(result.err, HasSubstr("optimizer.lr: 0.001 -> 0.002"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(InjectedFault, RestartsContinueFromTheCheckpointToTheSameLosses) {
  ASSERT_EQ(run("", "undisturbed").exit_code, 0);
  for (const char* fault : {"rank=1,step=7,at=forward,do=kill", "rank=0,step=11,at=collective,do=throw"}) {
    SCOPED_TRACE(fault);
    std::filesystem::remove_all(folder_ / "out");
    ProgramResult result = run(fault, "out", {"--max-restarts", "2"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(losses(), losses("undisturbed"));
  }
}

TEST_F(InjectedFault, ADamagedCheckpointCostsNoRestart) {
  ASSERT_EQ(run("", "undisturbed").exit_code, 0);
  ASSERT_EQ(run("rank=1,step=10,at=forward,do=kill").exit_code, 128 + SIGKILL);
  testing::flip_byte(folder_ / "out/step-00000008/rank-00001.h5", 4000);
  const ProgramResult result = run("", "out", {"--max-restarts", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("step-00000008.damaged-1"));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("(pid "))) << "no process ended before its time";
  EXPECT_EQ(losses(), losses("undisturbed"));
}

TEST_F(InjectedFault, ARunThatIsToldToStopSavesAndGoesOnLater) {
  ASSERT_EQ(run("", "undisturbed").exit_code, 0);
  const testing::RunOptions options{
      .env = {{"OMP_NUM_THREADS", "1"}, {"FSDP_INJECT_FAULT", "rank=0,step=6,at=step,do=sleep:2"}},
      .timeout_seconds = 60};
  for (int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    SCOPED_TRACE(signal);
    std::filesystem::remove_all(folder_ / "out");
    testing::RunningProgram program(command("out", {}), options);
    ASSERT_TRUE(testing::eventually(
        [&] {
          std::error_code error;
          return std::filesystem::file_size(folder_ / "out" / "metrics.jsonl", error) > 0 && !error &&
                 losses().size() == 5;
        },
        30));
    program.send(signal);
    ProgramResult stopped = program.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    EXPECT_THAT(stopped.out, HasSubstr("stopped on request at step 6"));
    EXPECT_THAT(stopped.out, HasSubstr("this command resumes from there: " + e2e::program("fsdp-train")));
    EXPECT_EQ(losses().size(), 6u);
    ASSERT_EQ(run("").exit_code, 0);
    EXPECT_EQ(losses(), losses("undisturbed"));
  }
}

}  // namespace
}  // namespace fsdp::e2e
