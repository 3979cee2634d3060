#include "comm/listener_wait.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/run_store.h"
#include "support/free_port.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Listens on the loopback address for as long as it lives, and accepts nobody.
class Listener {
 public:
  explicit Listener(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
  }
  ~Listener() { ::close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  int socket_;
};

TEST(WaitForListener, EndsWhenSomebodyListensOrAtTheDeadline) {
  const int port = testing::free_port();
  const auto deadline = Clock::now() + milliseconds(50);
  EXPECT_FALSE(wait_for_listener("127.0.0.1", port, deadline));
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_FALSE(wait_for_listener("127.0.0.1", port, Clock::now() - seconds(1)));
  const Listener listener(port);
  EXPECT_TRUE(wait_for_listener("127.0.0.1", port, Clock::now() - seconds(1)));
}

TEST(WaitForListener, MeetsOneWhoComesLater) {
  const int port = testing::free_port();
  bool found = false;
  Clock::time_point end;
  std::thread waits([&] {
    found = wait_for_listener("localhost", port, Clock::now() + seconds(60));
    end = Clock::now();
  });
  std::this_thread::sleep_for(milliseconds(30));
  const Listener listener(port);
  const auto begin = Clock::now();
  waits.join();
  EXPECT_TRUE(found);
  EXPECT_LT(end - begin, seconds(20)) << "it did not look again";
}

/// c10d's store warns on standard error of connections that were reset before it accepted them.
TEST(WaitForListener, IsNothingThatAStoreWarnsOf) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) {
    const int port = testing::free_port();
    auto join = [port](int rank) {
      join_run_store(
          {.rank = rank, .world_size = 2, .local_rank = rank, .local_world_size = 2, .master_port = port},
          seconds(60));
    };
    std::thread rank_1(join, 1);
    join(0);
    rank_1.join();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(WaitForListener, LeavesAnUnknownNameToWhoConnects) {
  EXPECT_TRUE(wait_for_listener("no.such.host.invalid", 1, Clock::now() + seconds(60)));
}

}  // namespace
}  // namespace fsdp::comm
