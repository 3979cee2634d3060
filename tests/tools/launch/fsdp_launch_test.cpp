// The built program, as a user or a scheduler meets it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/util/stop_signal.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::process_runs;
using testing::ProgramResult;
using testing::run;
using testing::RunningProgram;
using testing::RunOptions;
using testing::terminal_can_be_made;

const std::string kLauncher = testing::program_path("fsdp-launch");

std::vector<std::string> command(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> argv{kLauncher};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
  return argv;
}

/// The numbers that workers printed as "pid N".
std::vector<pid_t> printed_pids(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "pid" && words >> word) pids.push_back(std::stoi(word));
  }
  return pids;
}

const std::string kWaitForSignals =
    "for s in TERM INT HUP USR1 USR2; do trap \"echo got $s\" $s; done; echo ready $RANK; "
    "while :; do sleep 0.05; done";

TEST(FsdpLaunch, TakesBothSpellingsAndTorchrunsVariables) {
  const auto from_both = AllOf(HasSubstr("[rank0] x\n"), HasSubstr("[rank1] x\n"));
  EXPECT_THAT(run({kLauncher, "--nproc-per-node", "2", "echo", "x"}).out, from_both);
  EXPECT_THAT(run({kLauncher, "--nproc_per_node=2", "echo", "x"}).out, from_both);
  const RunOptions three{.env = {{"PET_NPROC_PER_NODE", "3"}, {"PET_MASTER_PORT", "1234"}}};
  EXPECT_THAT(run({kLauncher, "sh", "-c", "echo $WORLD_SIZE $MASTER_PORT"}, three).out, HasSubstr("3 1234"));
  EXPECT_THAT(run({kLauncher, "--nproc-per-node", "1", "sh", "-c", "echo $WORLD_SIZE"}, three).out,
              HasSubstr("[rank0] 1\n"));
  EXPECT_THAT(run({kLauncher, "--standalone", "sh", "-c", "echo port $MASTER_PORT"}, three).out,
              Not(HasSubstr("port 1234")));
}

TEST(FsdpLaunch, BeginsItsOwnLinesWithTheTimeOnRequest) {
  const auto errors = [](const char* wanted) {
    return run({kLauncher, "sh", "-c", "exit 3"}, {.env = {{"FSDP_LOG_TIMESTAMPS", wanted}}}).err;
  };
  constexpr const char* kTime = "(^|\n)[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z error: ";
  EXPECT_THAT(errors("1"), ContainsRegex(kTime));
  for (const char* off : {"0", "false", ""}) {
    EXPECT_THAT(errors(off), AllOf(Not(ContainsRegex(kTime)), HasSubstr("error: "))) << off;
  }
}

TEST(FsdpLaunch, LeavesTheProgramsArgumentsAlone) {
  EXPECT_EQ(run({kLauncher, "echo", "--nnodes", "7", "--", "-x", "--help"}).out,
            "[rank0] --nnodes 7 -- -x --help\n");
  EXPECT_EQ(run({kLauncher, "--", "echo", "--", "a  b", ""}).out, "[rank0] -- a  b \n");
}

TEST(FsdpLaunch, RefusesBadOptionsInOneLine) {
  const std::vector<std::vector<std::string>> bad = {
      {kLauncher},
      {kLauncher, "--"},
      {kLauncher, "--nproc-per-node", "0", "true"},
      {kLauncher, "--nproc-per-node", "x", "true"},
      {kLauncher, "--nproc-per-node"},
      {kLauncher, "--nproc-per-nod", "2", "true"},
      {kLauncher, "--nnodes", "2:1", "true"},
      {kLauncher, "--nnodes", "1:2", "true"},
      {kLauncher, "--nnodes", "2", "--standalone", "true"},
      {kLauncher, "--nnodes", "2", "--rdzv-backend", "c10d", "true"},
      {kLauncher, "--node-rank", "1", "true"},
      {kLauncher, "--rdzv-backend", "etcd", "true"},
      {kLauncher, "--rdzv-conf", "join_timeou=3", "true"},
      {kLauncher, "--max-restarts", "-1", "true"},
      {kLauncher, "--tee", "5", "true"},
      {kLauncher, "--numa-binding", "core", "true"},
      {kLauncher, "--signals-to-handle", "SIGKILL", "true"},
      {kLauncher, "--local-ranks-filter", "1", "true"},
      {kLauncher, "--master-port", "70000", "true"},
      {kLauncher, "--master-port", "abc", "true"},
      {kLauncher, "--shutdown-timeout", "-1", "true"},
      {kLauncher, "--shutdown-timeout", "nan", "true"},
      {kLauncher, "/nonexistent/program"},
      {kLauncher, "--nproc-per-node", "2", "no-such-program-here"},
  };
  for (const auto& argv : bad) {
    const ProgramResult result = run(argv);
    EXPECT_EQ(result.exit_code, 2) << argv.back() << ": " << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_THAT(run({kLauncher, "--nproc-per-nod", "2", "true"}).err,
              HasSubstr("did you mean --nproc-per-node?"));
}

TEST(FsdpLaunch, PrintsHelp) {
  const ProgramResult result = run({kLauncher, "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("--shutdown-timeout"));
}

TEST(FsdpLaunch, RefusesALogFolderThatCannotBe) {
  const ProgramResult result = run({kLauncher, "--log-dir", "/dev/null/logs", "echo", "started"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.out, "");
}

TEST(FsdpLaunch, GivesStdinToRankZeroOnly) {
  const std::string text(300000, 'x');
  const ProgramResult result =
      run(command({"--nproc-per-node", "2"}, "echo $RANK read $(wc -c)"), {.stdin_text = text});
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] 0 read 300000\n"), HasSubstr("[rank1] 1 read 0\n")));
}

TEST(FsdpLaunch, ShowsABeginningBeforeTheLineEnds) {
  RunningProgram program(command({}, "printf 'loading... '; sleep 60"));
  EXPECT_TRUE(program.wait_for("[rank0] loading... "));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().out, "[rank0] loading... \n");
}

TEST(FsdpLaunch, KeepsStdoutAndStderrWholeInOnePipe) {
  const ProgramResult result = run(
      {"/bin/sh", "-c",
       kLauncher + " --nproc-per-node 2 sh -c 'seq -f out%.0f 20000 & seq -f err%.0f 20000 >&2; wait' 2>&1"});
  size_t whole = 0;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line); ++whole) {
    ASSERT_TRUE(line.starts_with("[rank0] out") || line.starts_with("[rank0] err") ||
                line.starts_with("[rank1] out") || line.starts_with("[rank1] err"))
        << line;
    ASSERT_EQ(line.find('[', 1), std::string::npos) << line;
  }
  EXPECT_EQ(whole, 80000u);
}

TEST(FsdpLaunch, DrawsTransientTextOnATerminal) {
  if (!terminal_can_be_made()) GTEST_SKIP() << "no pseudo-terminals here";
  const ProgramResult result =
      run(command({},
                  "echo width $FSDP_TERMINAL_COLUMNS; printf '10%%\\r' >&2; sleep 0.2; printf '20%%\\r' >&2; "
                  "sleep 0.2; echo done; printf '%0100d\\r' 0 >&2; sleep 0.2"),
          {.terminal_columns = 60});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(
      result.out,
      "[rank0] width 52\r\n\r\033[K[rank0] 10%\r\033[K[rank0] 20%\r\033[K[rank0] done\r\n\r\033[K[rank0] " +
          std::string(52, '0') + "\r\033[K");
}

TEST(FsdpLaunch, TellsWorkersNothingOfATerminalThatIsNotThere) {
  EXPECT_EQ(run(command({}, "echo width ${FSDP_TERMINAL_COLUMNS-none}; printf '10%%\\r' >&2"),
                {.env = {{"FSDP_TERMINAL_COLUMNS", "70"}}})
                .out,
            "[rank0] width none\n");
}

TEST(FsdpLaunch, PassesSignalsOnToAllWorkers) {
  for (const auto& [signal, name] :
       {std::pair(SIGUSR1, "USR1"), std::pair(SIGUSR2, "USR2"), std::pair(SIGHUP, "HUP"),
        std::pair(SIGINT, "INT"), std::pair(SIGTERM, "TERM")}) {
    RunningProgram program(command({"--nproc-per-node", "2", "--shutdown-timeout", "0.5"}, kWaitForSignals));
    ASSERT_TRUE(program.wait_for("ready 0") && program.wait_for("ready 1"));
    program.send(signal);
    EXPECT_TRUE(program.wait_for(std::string("[rank0] got ") + name)) << name;
    EXPECT_TRUE(program.wait_for(std::string("[rank1] got ") + name)) << name;
    if (signal == SIGUSR1 || signal == SIGUSR2) program.send(SIGTERM);
    EXPECT_EQ(program.wait().exit_code, 137) << "these workers end by SIGKILL only";
  }
}

TEST(FsdpLaunch, PassesAnInterruptOnWhenStartedInTheBackgroundOfAScript) {
  // Such a shell lets the program start with SIGINT ignored.
  RunningProgram program({"/bin/sh", "-c",
                          kLauncher + " sh -c 'trap \"echo got it; exit 75\" INT; echo ready; "
                                      "while :; do sleep 0.05; done' & wait_for=$!; echo pid $wait_for; "
                                      "wait $wait_for; echo code $?"});
  ASSERT_TRUE(program.wait_for("ready"));
  ::kill(printed_pids(program.out()).at(0), SIGINT);
  EXPECT_THAT(program.wait().out, AllOf(HasSubstr("[rank0] got it"), HasSubstr("code 75")));
}

TEST(FsdpLaunch, StaysUnderNohup) {
  RunningProgram program(
      {"/bin/sh", "-c",
       "trap '' HUP; exec " + kLauncher + " --shutdown-timeout 0.1 sh -c 'echo ready; sleep 1; echo done'"});
  ASSERT_TRUE(program.wait_for("ready"));
  program.send(SIGHUP);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("[rank0] done"));
}

TEST(FsdpLaunch, EndsBySigtermAsItsWorkersDo) {
  RunningProgram program(command({"--nproc-per-node", "2"}, "echo ready $RANK; exec sleep 100"));
  ASSERT_TRUE(program.wait_for("ready 0") && program.wait_for("ready 1"));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 143);
  EXPECT_THAT(result.err, AllOf(HasSubstr("told to stop"), Not(HasSubstr("failed"))));
}

TEST(FsdpLaunch, ReportsAWorkerThatEndsBySigusr1) {
  RunningProgram program(command({"--nproc-per-node", "2"},
                                 "echo ready $RANK; [ $RANK = 0 ] && exec sleep 100; trap : USR1; "
                                 "while :; do sleep 0.05; done"));
  ASSERT_TRUE(program.wait_for("ready 0") && program.wait_for("ready 1"));
  ::usleep(100000);
  program.send(SIGUSR1);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGUSR1);
  EXPECT_THAT(result.err, HasSubstr("failed first: it was ended by SIGUSR1"));
}

TEST(FsdpLaunch, SavesAndStopsWhenToldTo) {
  RunningProgram program(command({"--nproc-per-node", "2"},
                                 "trap 'sleep 0.3; echo saved; exit 75' TERM; echo ready $RANK; "
                                 "while :; do sleep 0.05; done"));
  ASSERT_TRUE(program.wait_for("ready 0") && program.wait_for("ready 1"));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] saved"), HasSubstr("[rank1] saved")));
}

TEST(FsdpLaunch, TakesSignalsWithinASecondForOneRequest) {
  // GNU timeout signals the launcher, and then its process group.
  std::vector<std::string> argv = command({"--nproc-per-node", "2"},
                                          "trap 'sleep 0.3; echo saved; exit 75' TERM; echo ready $RANK; "
                                          "while :; do sleep 0.05; done");
  argv.insert(argv.begin(), {"timeout", "--preserve-status", "1"});
  const ProgramResult result = run(argv);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] saved"), HasSubstr("[rank1] saved")));
  EXPECT_THAT(result.err, Not(HasSubstr("again")));
}

TEST(FsdpLaunch, DoesNotKeepWorkersWaitingForAReaderThatHasStalled) {
  testing::TemporaryFolder folder;
  const std::string done = folder.path() / "done";
  RunningProgram program(
      command({"--log-dir", folder.path()},
              "i=0; while [ $i -lt 40000 ]; do echo line $i is a line of fifty characters or more; "
              "i=$((i + 1)); done; touch " +
                  done));
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(done); }, 40)) << "nothing has read its 2 MB";
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] line 0 is"), HasSubstr(" lines are missing here")));
  EXPECT_THAT(folder.read("rank0.log"), HasSubstr("line 39999 is"));
}

TEST(FsdpLaunch, KillsAtOnceWhenToldTwice) {
  RunningProgram program(
      command({"--nproc-per-node", "2"}, "trap '' TERM INT; echo $RANK pid $$; while :; do sleep 0.1; done"));
  ASSERT_TRUE(program.wait_for("[rank0] 0 pid") && program.wait_for("[rank1] 1 pid"));
  program.send(SIGINT);
  ASSERT_TRUE(program.wait_for("received SIGINT"));
  std::this_thread::sleep_for(util::kOneRequest + std::chrono::milliseconds(100));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_LT(result.seconds, 20) << "the 30 seconds of --shutdown-timeout were waited for";
  const std::vector<pid_t> pids = printed_pids(result.out);
  EXPECT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_FALSE(process_runs(pid));
}

TEST(FsdpLaunch, LeavesNoWorkerWhenItIsKilled) {
  RunningProgram program(
      command({"--nproc-per-node", "2"}, "trap '' TERM HUP; echo $RANK pid $$; exec sleep 100"));
  ASSERT_TRUE(program.wait_for("[rank0] 0 pid") && program.wait_for("[rank1] 1 pid"));
  program.send(SIGKILL);
  const ProgramResult result = program.wait();
  const std::vector<pid_t> pids = printed_pids(result.out);
  ASSERT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_TRUE(eventually([&] { return !process_runs(pid); })) << pid;
}

TEST(FsdpLaunch, LeavesNoDaemonOfAWorkerWhenItIsKilled) {
  RunningProgram program(command({"--nproc-per-node", "2"},
                                 "(setsid sh -c 'trap : TERM; echo pid $$; sleep 100; sleep 100' &); "
                                 "echo pid $$; exec sleep 100"));
  for (const char* line : {"[rank0] pid ", "[rank1] pid "}) {
    ASSERT_TRUE(program.wait_for(line, 2));
  }
  program.send(SIGKILL);
  program.wait();
  for (pid_t pid : printed_pids(program.out())) {
    EXPECT_TRUE(eventually([&] { return !process_runs(pid); })) << pid;
  }
}

TEST(FsdpLaunch, LeavesNoFolderBehind) {
  testing::TemporaryFolder folder;
  const RunOptions options{.env = {{"TMPDIR", folder.path().string()}}};
  EXPECT_EQ(run(command({}, "exit 0"), options).exit_code, 0);
  EXPECT_EQ(folder.entries(), 0);
  RunningProgram program(command({}, "echo ready; exec sleep 100"), options);
  ASSERT_TRUE(program.wait_for("ready"));
  program.send(SIGKILL);
  program.wait();
  EXPECT_TRUE(eventually([&] { return folder.entries() == 0; }));
}

TEST(FsdpLaunch, GivesWorkersNoDescriptorsOfItsOwn) {
  testing::TemporaryFolder folder;
  // The shell in between closes what this test process has open.
  const ProgramResult result = run({"/bin/bash", "-c",
                                    "for fd in /proc/self/fd/*; do n=${fd##*/}; [ $n -gt 2 ] && eval \"exec "
                                    "$n>&-\"; done 2>/dev/null; exec " +
                                        kLauncher + " --nproc-per-node 3 --tee 3 --log-dir " +
                                        folder.path().string() + " ls -l /proc/self/fd"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // 0, 1, 2, and the folder that ls reads.
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '>'), 3 * 4) << result.out;
}

TEST(FsdpLaunch, HandlesTheSignalsThatItIsTold) {
  RunningProgram program(command({"--signals-to-handle", "SIGINT"}, "echo pid $$; exec sleep 100"));
  ASSERT_TRUE(program.wait_for("pid"));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 143);
  EXPECT_EQ(program.err(), "") << "SIGTERM ends the launcher itself";
  const pid_t worker = printed_pids(program.out()).at(0);
  EXPECT_TRUE(eventually([&] { return !process_runs(worker); }));
}

TEST(FsdpLaunch, DoesNotStartAgainWhenToldToStop) {
  RunningProgram program(command({"--max-restarts", "3"}, "echo ready $RANK; exec sleep 100"));
  ASSERT_TRUE(program.wait_for("ready 0"));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 143);
  EXPECT_THAT(program.err(), Not(HasSubstr("restart")));
}

TEST(FsdpLaunch, EndsGrandchildrenOfAKilledWorker) {
  RunningProgram program(command({}, "sleep 100 & echo child pid $!; echo worker pid $$; wait"));
  ASSERT_TRUE(program.wait_for("worker pid"));
  const std::vector<pid_t> pids = printed_pids(program.out());
  ASSERT_EQ(pids.size(), 2u);
  ::kill(pids[1], SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 137);
  EXPECT_TRUE(eventually([&] { return !process_runs(pids[0]); }));
}

TEST(FsdpLaunch, AnswersSignalsWhileNobodyReadsItsOutput) {
  // The reader of the pipe sleeps, so the launcher's output backs up.
  RunningProgram program(
      {"/bin/sh", "-c",
       "(" + kLauncher +
           " --shutdown-timeout 0.2 sh -c 'echo $$ >&2; exec yes' & echo pid $! >&2; wait $!; "
           "echo code $? >&2) | sleep 5"});
  ASSERT_TRUE(program.wait_for("[rank0] "));
  ::usleep(500000);
  const pid_t launcher = printed_pids(program.err()).at(0);
  ::kill(launcher, SIGTERM);
  ::usleep(500000);
  ::kill(launcher, SIGTERM);
  EXPECT_TRUE(program.wait_for("code 143")) << program.err();
  EXPECT_LT(program.wait().seconds, 30);
}

TEST(FsdpLaunch, GoesOnWhenTheReaderOfItsOutputIsGone) {
  testing::TemporaryFolder folder;
  const ProgramResult result = run({"/bin/sh", "-c",
                                    "{ " + kLauncher + " sh -c 'seq 100000; echo finished > \"$0/done\"' " +
                                        folder.path().string() + "; echo code $? >&2; } | head -n 1"});
  EXPECT_EQ(result.out, "[rank0] 1\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("standard output"), HasSubstr("code 0")));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "done"));
}

TEST(FsdpLaunch, RunsWithClosedStandardDescriptors) {
  testing::TemporaryFolder folder;
  const ProgramResult result = run({"/bin/sh", "-c",
                                    "exec <&- >&- 2>&-; exec " + kLauncher + " --log-dir " +
                                        folder.path().string() + " sh -c 'cat; echo fine'"});
  EXPECT_EQ(result.exit_code, 0);
  std::ifstream log(folder.path() / "rank0.log");
  std::string line;
  EXPECT_TRUE(std::getline(log, line));
  EXPECT_EQ(line, "fine");
}

TEST(FsdpLaunch, SleepsWhileItsWorkersAreQuiet) {
  RunningProgram program(command({"--nproc-per-node", "2"}, "printf begun; exec sleep 1.5"));
  rusage before{}, after{};
  ::getrusage(RUSAGE_CHILDREN, &before);
  EXPECT_EQ(program.wait().exit_code, 0);
  ::getrusage(RUSAGE_CHILDREN, &after);
  const auto seconds = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  EXPECT_LT(seconds(after) - seconds(before), 0.3);
}

TEST(FsdpLaunch, SaysThatTooManyWorkersCannotBeStarted) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizers' own checks need descriptors, and this test leaves none";
#endif
  // Each limit runs out at another of the descriptors that a worker needs.
  for (int limit = 72; limit < 80; ++limit) {
    const ProgramResult result = run({"/bin/sh", "-c",
                                      "ulimit -n " + std::to_string(limit) + "; exec " + kLauncher +
                                          " --nproc-per-node 100 sh -c 'echo pid $$; exec sleep 100'"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("for another worker: Too many open files"));
    EXPECT_THAT(result.err, HasSubstr("ulimit -n"));
    for (pid_t pid : printed_pids(result.out)) EXPECT_FALSE(process_runs(pid));
  }
}

}  // namespace
}  // namespace fsdp::launch
