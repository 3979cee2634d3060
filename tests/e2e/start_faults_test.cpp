// What ends a run of fsdp-train while its ranks meet and set up, before anything is trained: at once, with
// its cause, and with the code of a pre-emption where that is what it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "e2e/programs.h"

namespace fsdp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::RunningProgram;

class StartFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_token_file(folder_ / "train.bin", 20 * 4 * 16 + 1, 17);
    std::ofstream(folder_ / "config.toml") << kOddModel;
  }

  /// A run that is far from its end, and far from its time-outs.
  std::vector<std::string> training(int timeout_seconds, const std::string& backend = "auto") const {
    return {program("fsdp-train"),
            (folder_ / "config.toml").string(),
            "run.output_dir=" + (folder_ / "run").string(),
            "data.train=[\"" + (folder_ / "train.bin").string() + "\"]",
            "training.steps=1000000",
            "checkpoint.interval_steps=1000000",
            "comm.timeout_seconds=" + std::to_string(timeout_seconds),
            "comm.backend=" + backend};
  }

  /// Two ranks of it, each of them a shell that does `first` and then becomes the program.
  std::vector<std::string> launched(const std::string& first, const std::string& backend = "auto") const {
    std::vector<std::string> command{program("fsdp-launch"),
                                     "--nproc-per-node",
                                     "2",
                                     "--shutdown-timeout",
                                     "60",
                                     "--",
                                     "/bin/sh",
                                     "-c",
                                     first + "exec \"$@\"",
                                     "sh"};
    for (const std::string& word : training(60, backend)) command.push_back(word);
    return command;
  }

  const testing::RunOptions kOptions{.env = {{"OMP_NUM_THREADS", "1"}}, .timeout_seconds = 50};
  testing::TemporaryFolder folder_;
};

/// The other waits for it, in a library that knows of no signals.
TEST_F(StartFaults, ARankThatIsLostBeforeTheyMeetEndsTheRunAtOnce) {
  for (const std::string backend : {"shm", "gloo"}) {
    for (const std::string victim : {"0", "1"}) {
      SCOPED_TRACE(backend + ", rank " + victim);
      const ProgramResult result = testing::run(
          launched("[ $RANK != " + victim + " ] || { sleep 0.7; kill -KILL $$; }; ", backend), kOptions);
      EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
      EXPECT_LT(result.seconds, 20);
      EXPECT_THAT(result.err, HasSubstr("error: rank " + victim + " (pid "));
    }
  }
}

TEST_F(StartFaults, BeingToldToStopIsPreemptionWhileTheProgramsAreLoaded) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    for (const double seconds : {0.0, 0.1}) {
      if (signal == SIGINT && seconds == 0) continue;  // sh -c catches it and ends by it
      SCOPED_TRACE(std::to_string(signal) + " after " + std::to_string(seconds));
      std::filesystem::remove_all(folder_ / "run");
      RunningProgram program(launched("echo rank $RANK starts; "), kOptions);
      ASSERT_TRUE(program.wait_for("rank 0 starts") && program.wait_for("rank 1 starts"));
      ::usleep(static_cast<useconds_t>(seconds * 1e6));
      program.send(signal);
      const ProgramResult result = program.wait();
      EXPECT_EQ(result.exit_code, 75) << result.err;
      // On a fast machine the ranks may have met by then; what they did is saved in that case.
      if (result.out.find("stopped on request at step ") == std::string::npos) {
        EXPECT_THAT(result.out, HasSubstr("before the first step; nothing was trained")) << result.err;
        EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "step-00000001"));
      }
    }
  }
}

TEST_F(StartFaults, BeingToldToStopIsPreemptionWhileOneRankWaitsForTheOther) {
  RunningProgram program(launched("echo rank $RANK starts; [ $RANK = 0 ] || { trap 'exit 75' TERM; "
                                  "while :; do sleep 0.05; done; }; "),
                         kOptions);
  ASSERT_TRUE(program.wait_for("rank 0 starts") && program.wait_for("rank 1 starts"));
  ::usleep(600000);
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_LT(result.seconds, 20);
}

/// A rank without a launcher that is to meet others at a port where something accepts connections and never
/// says a word.
class MuteListener : public StartFaults {
 protected:
  void SetUp() override {
    StartFaults::SetUp();
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(socket_, 8), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = std::to_string(ntohs(address.sin_port));
    options_ = kOptions;
    options_.env["RANK"] = "1";
    options_.env["WORLD_SIZE"] = "2";
    options_.env["MASTER_ADDR"] = "127.0.0.1";
    options_.env["MASTER_PORT"] = port_;
  }
  void TearDown() override { ::close(socket_); }

  int socket_ = -1;
  std::string port_;
  testing::RunOptions options_;
};

TEST_F(MuteListener, EndsARankWithATimeOutThatNamesTheAddress) {
  const ProgramResult result = testing::run(training(1), options_);
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_LT(result.seconds, 20);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rendezvous at 127.0.0.1:" + port_), HasSubstr("MASTER_PORT")));
}

TEST_F(MuteListener, DoesNotKeepARankFromBeingToldToStop) {
  RunningProgram program(training(60), options_);
  pollfd connection{.fd = socket_, .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&connection, 1, 30000), 1);
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_LT(result.seconds, 20);
}

}  // namespace
}  // namespace fsdp::e2e
