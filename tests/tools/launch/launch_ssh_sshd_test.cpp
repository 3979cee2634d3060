// scripts/launch_ssh with a real ssh and a real sshd, which listens on loopback with keys of its own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
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

constexpr const char* kSshd = "/usr/sbin/sshd";

class LaunchSshOverSshd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kSshd) ||
        testing::run({"/bin/sh", "-c", "command -v ssh && command -v ssh-keygen"}).exit_code != 0) {
      GTEST_SKIP() << "no ssh or no " << kSshd << " here (Debian: openssh-server)";
    }
    const std::string folder = folder_.path().string(), port = std::to_string(testing::free_port());
    for (const char* key : {"host_key", "user_key"}) {
      ASSERT_EQ(testing::run({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", (folder_ / key).string()})
                    .exit_code,
                0);
    }
    folder_.write("authorized_keys", folder_.read("user_key.pub"));
    folder_.write("sshd_config", "ListenAddress 127.0.0.1:" + port + "\nHostKey " + folder +
                                     "/host_key\nAuthorizedKeysFile " + folder +
                                     "/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n");
    // Nobody listens at the last one.
    folder_.write("ssh_config",
                  "Host 127.0.0.2\n  Port " + std::to_string(testing::free_port()) +
                      "\nHost *\n  HostName 127.0.0.1\n  Port " + port + "\n  IdentityFile " + folder +
                      "/user_key\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile "
                      "/dev/null\n  LogLevel ERROR\n  ConnectTimeout 10\n  BatchMode yes\n");
    folder_.write("hosts", "127.0.0.1\nlocalhost\n");
    start_sshd();
  }

  void TearDown() override {
    sshd_.reset();
    if (made_run_folder_) std::filesystem::remove(kRunFolder);
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
    return {.env = {{"FSDP_SSH", "ssh -F " + (folder_ / "ssh_config").string()},
                    {"FSDP_LAUNCH", testing::program_path("fsdp-launch")}}};
  }

  testing::TemporaryFolder folder_;
  const int port_ = testing::free_port();  ///< where the nodes meet

 private:
  static constexpr const char* kRunFolder = "/run/sshd";  ///< root's sshd wants it; init makes it elsewhere

  void start_sshd() {
    if (::geteuid() == 0) made_run_folder_ = std::filesystem::create_directory(kRunFolder);
    sshd_ = std::make_unique<RunningProgram>(
        std::vector<std::string>{kSshd, "-D", "-f", (folder_ / "sshd_config").string(), "-E",
                                 (folder_ / "log").string()},
        testing::RunOptions{.timeout_seconds = 300});
    const auto answers = [&] {
      return testing::run({"ssh", "-F", (folder_ / "ssh_config").string(), "localhost", "true"}).exit_code ==
             0;
    };
    if (!eventually([&] { return !process_runs(sshd_->pid()) || answers(); }) ||
        !process_runs(sshd_->pid())) {
      GTEST_SKIP() << "sshd lets nobody in here: "
                   << (std::filesystem::exists(folder_ / "log") ? folder_.read("log") : "");
    }
  }

  bool made_run_folder_ = false;
  std::unique_ptr<RunningProgram> sshd_;
};

TEST_F(LaunchSshOverSshd, ShowsTheOutputOfEachHostAndEndsWithTheCodeOfTheRun) {
  const ProgramResult result = testing::run(
      command("echo \"$RANK of $WORLD_SIZE\"; echo aside >&2; [ $RANK = 0 ] || exit 9; exec sleep 100"),
      options());
  EXPECT_EQ(result.exit_code, 9) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("[127.0.0.1] [rank0] 0 of 2\n"), HasSubstr("[localhost] [rank1] 1 of 2\n")));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("[127.0.0.1] [rank0] aside\n"), HasSubstr("[localhost] [rank1] aside\n")));
}

TEST_F(LaunchSshOverSshd, NamesAHostThatCannotBeReached) {
  folder_.write("hosts", "127.0.0.1\n127.0.0.2\n");
  const ProgramResult result = testing::run(command("exec sleep 100"), options());
  EXPECT_EQ(result.exit_code, 255);
  EXPECT_THAT(result.err, HasSubstr("== 127.0.0.2: cannot be reached"));
}

TEST_F(LaunchSshOverSshd, WhenStoppedGivesAllHostsTimeToSave) {
  RunningProgram program(
      command("trap 'sleep 1; echo saved; exit 75' TERM; echo pid $$; while :; do sleep 0.1; done"),
      options());
  ASSERT_TRUE(program.wait_for("pid ", 2)) << program.err();
  ::kill(-program.pid(), SIGTERM);  // to ssh too, as a Ctrl-C would be
  EXPECT_EQ(program.wait().exit_code, 75);
  EXPECT_THAT(program.out(),
              AllOf(HasSubstr("[127.0.0.1] [rank0] saved\n"), HasSubstr("[localhost] [rank1] saved\n")));
}

TEST_F(LaunchSshOverSshd, LeavesNothingOnTheHostsWhenItIsKilled) {
  RunningProgram program(command("echo pid $$; exec sleep 100"), options());
  ASSERT_TRUE(program.wait_for("pid ", 2)) << program.err();
  program.send(SIGKILL);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGKILL);
  size_t at = 0;
  for (int worker = 0; worker < 2; ++worker) {
    at = program.out().find("pid ", at) + 4;
    const pid_t pid = std::stoi(program.out().substr(at));
    EXPECT_TRUE(eventually([&] { return !process_runs(pid); })) << pid;
  }
}

}  // namespace
}  // namespace fsdp::launch
