// scripts/launch_ssh, with a command in place of ssh that runs everything on this machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "support/free_port.h"
#include "support/program_path.h"
#include "support/run_program.h"
#include "support/source_folder.h"
#include "support/temporary_folder.h"

namespace fsdp::launch {
namespace {

using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::process_runs;
using testing::ProgramResult;
using testing::RunningProgram;

class LaunchSsh : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("hosts", "127.0.0.1  # the first\n\n  localhost\n");
    const auto ssh = folder_.write(
        "ssh",
        "#!/bin/sh\n[ $1 = unreachable ] && exit 255\nshift\nexec env --default-signal sh -c \"$*\"\n");
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  }

  std::vector<std::string> command(const std::string& script) const {
    return {testing::source_folder() + "/scripts/launch_ssh",
            (folder_ / "hosts").string(),
            "--master-port",
            std::to_string(port_),
            "--",
            "/bin/sh",
            "-c",
            script};
  }
  testing::RunOptions options() const {
    return {.env = {{"FSDP_SSH", (folder_ / "ssh").string()},
                    {"FSDP_LAUNCH", testing::program_path("fsdp-launch")}}};
  }

  testing::TemporaryFolder folder_;
  const int port_ = testing::free_port();  ///< where the nodes meet
};

TEST_F(LaunchSsh, StartsEveryHostAndShowsItsOutput) {
  const ProgramResult result = testing::run(command("echo \"$RANK of $WORLD_SIZE  '\""), options());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[127.0.0.1] [rank0] 0 of 2  '\n"),
                                HasSubstr("[localhost] [rank1] 1 of 2  '\n")));
}

TEST_F(LaunchSsh, BringsArgumentsToTheHostsAsTheyAre) {
  const std::string argument = "two\nlines, 'quotes', \"more\", $HOME `x` \\ \xc3\xbc";
  std::vector<std::string> words = command("printf '%s' \"$0\" | od -An -tx1 -v | tr -d ' \\n'; echo");
  words.push_back(argument);
  const ProgramResult result = testing::run(words, options());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::string bytes;
  for (const unsigned char byte : argument) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    bytes += digits;
  }
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] " + bytes + "\n"), HasSubstr("[rank1] " + bytes + "\n")));
}

TEST_F(LaunchSsh, TakesAUserNameWithAHost) {
  folder_.write("hosts", "somebody@localhost\nsomebody@127.0.0.1\n");
  const ProgramResult result = testing::run(command("echo master $MASTER_ADDR"), options());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[somebody@localhost] [rank0] master localhost\n"));
}

TEST_F(LaunchSsh, TakesNoHostForAnOptionOfSsh) {
  folder_.write("hosts", "127.0.0.1\n-oProxyCommand=touch here\n");
  const ProgramResult result = testing::run(command("true"), options());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("found -oProxyCommand=touch here, which ssh would take for an option"));
}

TEST_F(LaunchSsh, EndsWithTheCodeOfTheRun) {
  const ProgramResult result = testing::run(command("[ $RANK = 1 ] && exit 9; exec sleep 100"), options());
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_LT(result.seconds, 20);
}

TEST_F(LaunchSsh, NamesAHostThatCannotBeReachedAndStopsTheOthers) {
  folder_.write("hosts", "127.0.0.1\nunreachable\n");
  const ProgramResult result = testing::run(command("true"), options());
  EXPECT_EQ(result.exit_code, 255);
  EXPECT_THAT(result.err, HasSubstr("== unreachable: cannot be reached"));
  EXPECT_LT(result.seconds, 20);
}

TEST_F(LaunchSsh, TakesSignalsWithinASecondForOneRequest) {
  // GNU timeout signals the script, and then its process group.
  RunningProgram program(
      command("trap 'sleep 1; echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done"),
      options());
  ASSERT_TRUE(program.wait_for("ready", 2));
  program.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank0] saved"), HasSubstr("[rank1] saved")));
}

TEST_F(LaunchSsh, StopsAllHostsWhenItIsStoppedOrKilled) {
  for (int signal : {SIGTERM, SIGKILL}) {
    RunningProgram program(command("echo pid $$; exec sleep 100"), options());
    ASSERT_TRUE(program.wait_for("pid ", 2));
    program.send(signal);
    EXPECT_EQ(program.wait().exit_code, 128 + signal);
    size_t at = 0;
    for (int worker = 0; worker < 2; ++worker) {
      at = program.out().find("pid ", at) + 4;
      const pid_t pid = std::stoi(program.out().substr(at));
      EXPECT_TRUE(eventually([&] { return !process_runs(pid); })) << pid;
    }
  }
}

}  // namespace
}  // namespace fsdp::launch
