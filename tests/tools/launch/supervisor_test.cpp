#include "tools/launch/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <string>

#include "base/util/error.h"
#include "base/util/file.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"
#include "tools/launch/descriptor.h"
#include "tools/launch/node_hardware.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

struct Outcome {
  int exit_code = 0;
  std::string out, err;
  double seconds = 0;
};

LaunchOptions shells(int workers, const std::string& script) {
  LaunchOptions options;
  options.nproc_per_node = workers;
  options.program = {"/bin/sh", "-c", script};
  return options;
}

/// launch() with the console in two files.
Outcome launch_captured(const LaunchOptions& options) {
  testing::TemporaryFolder folder;
  const auto out_path = folder.path() / "out", err_path = folder.path() / "err";
  Descriptor out(::open(out_path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  Descriptor err(::open(err_path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  outcome.exit_code = launch(options, {.out = out.get(), .err = err.get()});
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.out = util::read_file(out_path);
  outcome.err = util::read_file(err_path);
  return outcome;
}

std::multiset<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::multiset<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1, end - start);
}

TEST(Supervisor, StartsEveryRankAndPrefixesItsLines) {
  const Outcome outcome = launch_captured(shells(3, "echo $RANK of $WORLD_SIZE; echo e$LOCAL_RANK >&2"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(lines_of(outcome.out),
            (std::multiset<std::string>{"[rank0] 0 of 3", "[rank1] 1 of 3", "[rank2] 2 of 3"}));
  EXPECT_EQ(lines_of(outcome.err), (std::multiset<std::string>{"[rank0] e0", "[rank1] e1", "[rank2] e2"}));
}

TEST(Supervisor, GivesAllRanksTheSameMasterPort) {
  const Outcome outcome = launch_captured(shells(3, "echo $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID"));
  std::set<std::string> different;
  for (const std::string& line : lines_of(outcome.out)) different.insert(line.substr(line.find(']') + 2));
  ASSERT_EQ(different.size(), 1u);
  EXPECT_THAT(*different.begin(), MatchesRegex("127\\.0\\.0\\.1 [0-9]+ [0-9a-f]+"));
}

TEST(Supervisor, NeverMixesLines) {
  const Outcome outcome =
      launch_captured(shells(4,
                             "i=0; while [ $i -lt 500 ]; do printf \"$RANK:\"; printf 'aaaaaaaaaa'; "
                             "echo bbbbbbbbbb; i=$((i+1)); done"));
  std::multiset<std::string> expected;
  for (int rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 500; ++i) {
      expected.insert(concat("[rank", rank, "] ", rank, ":aaaaaaaaaabbbbbbbbbb"));
    }
  }
  EXPECT_EQ(lines_of(outcome.out), expected);
}

TEST(Supervisor, JoinsALineThatPausesAndEndsAnUnfinishedOne) {
  const Outcome outcome = launch_captured(shells(1, "printf abc; sleep 0.6; printf 'def\\nghi'"));
  EXPECT_EQ(outcome.out, "[rank0] abcdef\n[rank0] ghi\n");
}

TEST(Supervisor, ShowsNoTransientTextInAFile) {
  const Outcome outcome =
      launch_captured(shells(1, "printf '10%%\\r'; sleep 0.6; printf '20%%\\r'; printf 'done\\n99%%\\r'"));
  EXPECT_EQ(outcome.out, "[rank0] done\n");
}

TEST(Supervisor, PassesOnMegabytes) {
  const Outcome outcome =
      launch_captured(shells(2, "head -c 3000000 /dev/zero | tr '\\0' x; echo; seq 100000"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'x'), 2 * 3000000);
  EXPECT_EQ(lines_of(outcome.out).count("[rank1] 100000"), 1u);
}

TEST(Supervisor, KeepsAFileForEachRank) {
  testing::TemporaryFolder folder;
  LaunchOptions options = shells(2, "echo out $RANK; echo err $RANK >&2; printf 'bar\\r'; [ $RANK = 0 ]");
  options.log_dir = folder.path() / "logs";
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(lines_of(util::read_file(folder.path() / "logs" / "rank1.log")),
            (std::multiset<std::string>{"err 1", "out 1"}));
  EXPECT_THAT(last_line(outcome.err), HasSubstr("logs/rank1.log"));
}

TEST(Supervisor, TellsAUsersMistakeOnce) {
  const Outcome outcome =
      launch_captured(shells(2, "[ $RANK = 1 ] && { echo 'no such key' >&2; exit 2; }; exec sleep 100"));
  EXPECT_EQ(outcome.exit_code, 2);
  const size_t first = outcome.err.find("no such key");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(outcome.err.find("no such key", first + 1), std::string::npos) << outcome.err;
}

TEST(Supervisor, EndsTheRunWithTheFirstFailure) {
  const Outcome outcome =
      launch_captured(shells(3, "[ $RANK = 1 ] && { echo 'no such file' >&2; exit 7; }; exec sleep 100"));
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_THAT(outcome.err, HasSubstr("last output of rank 1:\n    no such file\n"));
  EXPECT_THAT(
      last_line(outcome.err),
      MatchesRegex("error: rank 1 \\(pid [0-9]+ on [^ ]+\\) failed first: it ended with exit code 7"));
}

TEST(Supervisor, NamesTheSignalThatEndedAWorker) {
  const Outcome outcome = launch_captured(shells(2, "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 100"));
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(last_line(outcome.err), AllOf(HasSubstr("rank 0 (pid "), HasSubstr("was ended by SIGSEGV")));
}

TEST(Supervisor, NamesTheCauseAndNotTheRankThatLostItsPeer) {
  const Outcome outcome =
      launch_captured(shells(2,
                             "trap 'echo broken >&2; exit 8' TERM; [ $RANK = 0 ] && { sleep 0.2; exit 5; }; "
                             "while :; do sleep 0.05; done"));
  EXPECT_EQ(outcome.exit_code, 8);
  EXPECT_THAT(last_line(outcome.err), HasSubstr("rank 1"));
}

TEST(Supervisor, WaitsForTheEndOfARankWhosePeerHasLostIt) {
  // Its connections are closed, and it is about to say why; it handles no signals any more.
  const Outcome outcome = launch_captured(shells(2, "[ $RANK = 0 ] && exit 5; sleep 0.2; exit 8"));
  EXPECT_EQ(outcome.exit_code, 8);
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0 (pid")));
  EXPECT_THAT(last_line(outcome.err), HasSubstr("rank 1"));
}

TEST(Supervisor, EndsARunInWhichPeersWereLostForNoCauseThatIsSeen) {
  const Outcome outcome = launch_captured(shells(2, "[ $RANK = 0 ] && exit 5; exec sleep 100"));
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_THAT(outcome.err,
              ::testing::ContainsRegex(
                  "rank 0 \\(pid [0-9]+ on [^ ]+\\) ended with exit code 5: stopping 1 other worker"));
}

TEST(Supervisor, TellsTheOthersToStopAfterOneThatWasToldAlone) {
  const Outcome outcome = launch_captured(
      shells(2, "[ $RANK = 0 ] && exit 75; trap 'exit 75' TERM; while :; do sleep 0.05; done"));
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_LT(outcome.seconds, 10);
}

TEST(Supervisor, SaysNothingOfASaveWhenTheOthersStopAfterALostPeer) {
  LaunchOptions options =
      shells(2,
             "echo attempt; [ $RANK = 0 ] && { sleep 0.2; exit 5; }; trap 'exit 75' TERM; "
             "while :; do sleep 0.05; done");
  options.max_restarts = 1;
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 5) << "with 75 a batch system would start the failure again for ever";
  EXPECT_EQ(lines_of(outcome.out).count("[rank0] attempt"), 2u);
  EXPECT_THAT(last_line(outcome.err), HasSubstr("rank 0"));
}

TEST(Supervisor, KillsAWorkerThatIgnoresBeingTold) {
  LaunchOptions options =
      shells(2, "trap '' TERM; [ $RANK = 0 ] && { sleep 0.2; exit 4; }; while :; do sleep 0.1; done");
  options.shutdown_timeout_seconds = 0.3;
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_GE(outcome.seconds, 0.5);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
  EXPECT_THAT(outcome.err, HasSubstr("killing it"));
  EXPECT_THAT(last_line(outcome.err), HasSubstr("rank 0"));
}

TEST(Supervisor, ReportsPreemptionWhenAllSaved) {
  EXPECT_EQ(launch_captured(shells(2, "exit 75")).exit_code, 75);
  // One that is done saving does not hurry the others.
  const Outcome outcome = launch_captured(shells(2, "[ $RANK = 0 ] || { sleep 0.3; echo saved; }; exit 75"));
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_EQ(outcome.out, "[rank1] saved\n");
}

TEST(Supervisor, KillsWhatAWorkerLeavesBehind) {
  const Outcome outcome = launch_captured(shells(1, "sleep 100 & echo $!"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, 10) << "the grandchild holds the worker's stdout";
  const pid_t grandchild = std::stoi(outcome.out.substr(std::string("[rank0] ").size()));
  EXPECT_TRUE(testing::eventually([&] { return !testing::process_runs(grandchild); }));
}

TEST(Supervisor, ReapsOrphansThatBecomeItsChildren) {
  // As a process with the number 1 has them, in a container.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const Outcome outcome = launch_captured(shells(
      1,
      "orphan=$(sh -c 'sleep 0.2 >/dev/null 2>&1 & echo $!'); sleep 0.2; for i in 1 2 3 4 5 6 7 8 9; do "
      "[ -e /proc/$orphan ] || { echo reaped; break; }; sleep 0.2; done"));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  EXPECT_EQ(outcome.out, "[rank0] reaped\n");
}

TEST(Supervisor, EndsADaemonThatAWorkerStarted) {
  const Outcome outcome = launch_captured(shells(1, "setsid sleep 100 & echo $!; sleep 0.2"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_LT(outcome.seconds, 10) << "the daemon holds the worker's stdout";
  EXPECT_FALSE(testing::process_runs(std::stoi(outcome.out.substr(std::string("[rank0] ").size()))));
}

TEST(Supervisor, StartsAllWorkersAgainAfterAFailure) {
  testing::TemporaryFolder folder;
  LaunchOptions options =
      shells(2,
             "echo $RANK in $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
             "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || { [ $RANK = 1 ] && exit 3; sleep 100; }");
  options.max_restarts = 2;
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("[rank0] 0 in 2 of 2\n"), HasSubstr("[rank1] 1 in 2 of 2\n")));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("restart 1 of 2"), HasSubstr("restart 2 of 2"),
                                 HasSubstr("rank 1 (pid "), Not(HasSubstr("failed first"))));
}

TEST(Supervisor, GivesUpAfterTheLastRestart) {
  LaunchOptions options = shells(1, "echo attempt; exit 3");
  options.max_restarts = 2;
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(lines_of(outcome.out).count("[rank0] attempt"), 3u);
  EXPECT_THAT(last_line(outcome.err), HasSubstr("exit code 3, after 2 restarts of 2"));
}

TEST(Supervisor, DoesNotStartAgainWhatWouldEndSoAgain) {
  for (const int code : {2, 8}) {
    LaunchOptions options = shells(1, concat("echo attempt; exit ", code));
    options.max_restarts = 2;
    const Outcome outcome = launch_captured(options);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.out, "[rank0] attempt\n");
    EXPECT_THAT(outcome.err, HasSubstr("is not restarted (--max-restarts)"));
    EXPECT_THAT(last_line(outcome.err), HasSubstr("after 0 restarts of 2"));
  }
}

TEST(Supervisor, DoesNotStartAgainWhatSavedAndStopped) {
  LaunchOptions options = shells(1, "echo attempt; exit 75");
  options.max_restarts = 2;
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.exit_code, 75);
  EXPECT_EQ(outcome.out, "[rank0] attempt\n");
}

TEST(Supervisor, ShowsWhatAWorkerWroteToItsErrorFile) {
  const Outcome outcome = launch_captured(shells(
      1, R"(echo '{"message": {"message": "ValueError: 7", "extraInfo": {}}}' > $TORCHELASTIC_ERROR_FILE;
                   dirname $TORCHELASTIC_ERROR_FILE; exit 1)"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 reports: ValueError: 7\n"));
  const std::string folder = outcome.out.substr(std::string("[rank0] ").size());
  EXPECT_FALSE(std::filesystem::exists(folder.substr(0, folder.find('\n'))));
}

TEST(Supervisor, KeepsStreamsInFilesAsTorchrunDoes) {
  testing::TemporaryFolder folder;
  LaunchOptions options = shells(2, "echo out $RANK; echo err $RANK >&2");
  options.log_dir = folder.path() / "logs";
  options.rendezvous.id = "run7";
  options.redirects.of_local_rank = {{0, StreamChoice::kOut | StreamChoice::kErr}};
  options.tee.of_local_rank = {{1, StreamChoice::kErr}};
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.out, "[rank1] out 1\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("[rank1] err 1\n"), Not(HasSubstr("err 0"))));
  const auto run = std::filesystem::directory_iterator(folder.path() / "logs")->path();
  EXPECT_THAT(run.filename().string(), MatchesRegex("run7_......"));
  EXPECT_EQ(util::read_file(run / "attempt_0" / "0" / "stdout.log"), "out 0\n");
  EXPECT_EQ(util::read_file(run / "attempt_0" / "0" / "stderr.log"), "err 0\n");
  EXPECT_EQ(util::read_file(run / "attempt_0" / "1" / "stderr.log"), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(run / "attempt_0" / "1" / "stdout.log"));
}

TEST(Supervisor, ShowsChosenLocalRanksOnly) {
  LaunchOptions options = shells(3, "echo out $RANK; echo err $RANK >&2");
  options.local_ranks_filter = {1};
  const Outcome outcome = launch_captured(options);
  EXPECT_EQ(outcome.out, "[rank1] out 1\n");
  EXPECT_EQ(outcome.err, "[rank1] err 1\n");
}

TEST(Supervisor, BindsWorkersToCores) {
  if (read_cpus().empty()) GTEST_SKIP() << "this system tells nothing of its cores in /sys";
  LaunchOptions options = shells(1, "echo $(nproc) $OMP_NUM_THREADS");
  options.numa_binding = NumaBinding::kCoreComplex;
  const Outcome outcome = launch_captured(options);
  const auto bound = bind_workers(NumaBinding::kCoreComplex, read_cpus(), {}, 1).at(0);
  EXPECT_EQ(outcome.out, concat("[rank0] ", bound.size(), " ", bound.size(), "\n"));
}

TEST(Supervisor, StartsNothingWhenTheProgramIsMissing) {
  LaunchOptions options = shells(2, "");
  options.program = {"/nonexistent/program"};
  EXPECT_THROW(launch_captured(options), util::Error);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST(Supervisor, LeavesTheSignalsOfItsProcessAsTheyWere) {
  sigset_t before, after;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  launch_captured(shells(1, "true"));
  sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

}  // namespace
}  // namespace fsdp::launch
