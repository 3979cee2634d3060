#include "tools/launch/worker_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/util/error.h"
#include "tools/launch/message.h"
#include "tools/launch/worker_environment.h"

namespace fsdp::launch {
namespace {

using ::testing::HasSubstr;

/// A channel, and the launcher's end of it.
class WorkerChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    launcher_.emplace(Descriptor(ends[0]));
    channel_.emplace(Descriptor(ends[1]));
  }
  void tell(const Message& message) {
    launcher_->send(line_of(message));
    launcher_->flush();
  }
  void begin(int number) { tell(to_message(Epoch{.number = number, .replicas = {0, 1}, .replica_size = 1})); }
  Message heard() {
    launcher_->exchange();
    return parse_message(launcher_->take_line().value()).value();
  }

  std::optional<LineSocket> launcher_;
  std::optional<WorkerChannel> channel_;
};

TEST_F(WorkerChannelTest, SaysThatItIsReadyAndTakesTheFirstEpoch) {
  EXPECT_FALSE(channel_->change_is_due());
  begin(4);
  EXPECT_EQ(channel_->ready({})->number, 4);
  EXPECT_EQ(heard().at("type"), "ready");
}

TEST_F(WorkerChannelTest, AChangeIsDueInTheEpochThatItWasSaidOf) {
  begin(1);
  channel_->ready({});
  heard();
  EXPECT_FALSE(channel_->change_is_due());
  tell({{"type", "pause"}, {"epoch", 1}});
  EXPECT_TRUE(channel_->change_is_due());
  EXPECT_FALSE(channel_->is_broken_off());
  tell({{"type", "break_off"}, {"epoch", 1}, {"why", "rank 3 was lost"}});
  EXPECT_TRUE(channel_->is_broken_off());
  begin(2);
  EXPECT_EQ(channel_->stopped({.step = 7, .suspects = {3}}, {})->number, 2);
  const Message report = heard();
  EXPECT_EQ(report.at("type"), "stopped");
  EXPECT_EQ(report.at("epoch"), 1);
  EXPECT_EQ(report.at("step"), 7);
  EXPECT_FALSE(channel_->change_is_due());
  EXPECT_FALSE(channel_->is_broken_off());
}

TEST_F(WorkerChannelTest, GivesUpWhenToldToOrAfterItsTimeOrWithoutALauncher) {
  EXPECT_EQ(channel_->ready({.give_up = [] { return true; }}), std::nullopt);
  try {
    channel_->ready({.timeout_seconds = 0.05});
    FAIL() << "no epoch was told";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
  }
  launcher_.reset();
  try {
    channel_->ready({});
    FAIL() << "the launcher is gone";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  }
}

TEST(WorkerChannelEnvironment, NamesAnOpenSocketOrNothing) {
  ::unsetenv(kChannelVariable);
  EXPECT_EQ(WorkerChannel::from_environment(), nullptr);
  const Descriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const std::string& text : {std::string("x"), std::string("99999"), std::to_string(file.get())}) {
    ::setenv(kChannelVariable, text.c_str(), 1);
    try {
      WorkerChannel::from_environment();
      ADD_FAILURE() << text;
    } catch (const util::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("FSDP_LAUNCH_CHANNEL must be the number of an open socket"));
    }
  }
  ::unsetenv(kChannelVariable);
}

}  // namespace
}  // namespace fsdp::launch
