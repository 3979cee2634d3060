// A run of fsdp-train under fsdp-launch, and what ends it: in bounded time, with its cause, leaving no
// process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::process_runs;
using testing::ProgramResult;
using testing::RunningProgram;

class LaunchFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// A run of two ranks that is far from its end. Each rank is a shell that becomes fsdp-train, so that its
  /// number is known.
  std::vector<std::string> endless_run(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> command{program("fsdp-launch"), "--nproc-per-node", "2", "--shutdown-timeout",
                                     "5"};
    command.insert(command.end(), options.begin(), options.end());
    for (const std::string& argument :
         {std::string("--"), std::string("/bin/sh"), std::string("-c"),
          std::string("echo rank $RANK has pid $$.; exec \"$0\" \"$@\""), program("fsdp-train"),
          (folder_ / "config.toml").string(), "run.output_dir=" + (folder_ / "run").string(),
          "data.train=[\"" + (folder_ / "train.bin").string() + "\"]", std::string("training.steps=1000000"),
          std::string("checkpoint.interval_steps=1000000"), std::string("comm.timeout_seconds=3")}) {
      command.push_back(argument);
    }
    return command;
  }

  static pid_t pid_of_rank(const RunningProgram& program, int rank) {
    const std::string text = "rank " + std::to_string(rank) + " has pid ";
    return std::stoi(program.out().substr(program.out().find(text) + text.size()));
  }

  /// Waits until steps are being trained.
  bool trains(RunningProgram& program) const {
    return program.wait_for("rank 0 has pid ") && program.wait_for("rank 1 has pid ") &&
           eventually(
               [&] {
                 std::error_code error;
                 return std::filesystem::file_size(folder_ / "run" / "metrics.jsonl", error) > 0 && !error;
               },
               30);
  }

  static void expect_none_left(const RunningProgram& program) {
    for (int rank : {0, 1}) {
      const pid_t pid = pid_of_rank(program, rank);
      EXPECT_TRUE(eventually([&] { return !process_runs(pid); })) << "rank " << rank;
    }
  }

  const testing::RunOptions kOptions{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 90};
  testing::TemporaryFolder folder_;
};

TEST_F(LaunchFaults, KilledRankIsNamed) {
  RunningProgram program(endless_run(), kOptions);
  ASSERT_TRUE(trains(program));
  const auto killed_at = std::chrono::steady_clock::now();
  ::kill(pid_of_rank(program, 1), SIGKILL);
  const ProgramResult result = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(15));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("error: rank 1 (pid "), HasSubstr("failed first: it was ended by SIGKILL")));
  expect_none_left(program);
}

TEST_F(LaunchFaults, StoppedRankEndsTheRun) {
  RunningProgram program(endless_run(), kOptions);
  ASSERT_TRUE(trains(program));
  const auto stopped_at = std::chrono::steady_clock::now();
  ::kill(pid_of_rank(program, 1), SIGSTOP);
  const ProgramResult result = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - stopped_at, std::chrono::seconds(30));
  EXPECT_THAT(result.exit_code, ::testing::AnyOf(5, 6)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: rank 0 (pid "));
  expect_none_left(program);
}

TEST_F(LaunchFaults, KilledLauncherLeavesNoRank) {
  RunningProgram program(endless_run(), kOptions);
  ASSERT_TRUE(trains(program));
  program.send(SIGKILL);
  program.wait();
  expect_none_left(program);
}

TEST_F(LaunchFaults, ToldToStopEndsAllRanks) {
  RunningProgram program(endless_run(), kOptions);
  ASSERT_TRUE(trains(program));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_none_left(program);
}

TEST_F(LaunchFaults, ToldToStopTogetherWithItsRanksSaves) {
  testing::RunOptions options = kOptions;
  options.env["FSDP_INJECT_FAULT"] =
      "rank=0,step=6,at=step,do=sleep:2";  // so that the signals come within one
  RunningProgram program(endless_run(), options);
  ASSERT_TRUE(trains(program));
  ASSERT_TRUE(eventually([&] {
    std::ifstream file(folder_ / "run" / "metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n') == 5;
  }));
  // What SLURM does: every process of the job gets the signal, and from the launcher they get it again.
  program.send(SIGTERM);
  ASSERT_TRUE(program.wait_for("passed it on to 2 workers"));
  // Many times, since a signal that comes while another waits to be handled is lost.
  int times = 0;
  eventually([&] {
    for (int rank : {0, 1}) ::kill(pid_of_rank(program, rank), SIGTERM);
    return ++times == 50;
  });
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "step-00000006" / "manifest.json"));
  expect_none_left(program);
}

TEST_F(LaunchFaults, PortInUseIsSaid) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const ProgramResult result = testing::run(endless_run({"--master-port", port}), kOptions);
  ::close(fd);
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err, HasSubstr("port " + port));
}

}  // namespace
}  // namespace fsdp::e2e
