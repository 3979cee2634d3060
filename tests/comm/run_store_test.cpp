#include "comm/run_store.h"

#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/free_port.h"
#include "util/error.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Listens on the loopback address for as long as it lives, and accepts nobody by itself.
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
  void accept_and_reset() const {
    const int connection = ::accept(socket_, nullptr, nullptr);
    EXPECT_GE(connection, 0);
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(::setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    ::close(connection);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  int socket_;
};

TEST(RunStore, AsksForTheAddressThatMpirunDoesNotTell) {
  LaunchEnvironment environment{.rank = 1, .world_size = 2};
  environment.master_addr.clear();
  try {
    join_run_store(environment, seconds(1));
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("-x MASTER_ADDR=HOST"), std::string::npos) << error.what();
  }
}

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

LaunchEnvironment alone_at(const std::string& host) {
  LaunchEnvironment environment;
  environment.master_addr = host;
  environment.master_port = testing::free_port();
  return environment;
}

RunStore join(const LaunchEnvironment& environment) { return join_run_store(environment, seconds(20)); }

bool listens(const std::string& host, int port) {
  return wait_for_listener(host, port, Clock::time_point::min());
}

TEST(RunStore, ListensOnlyAtALoopbackAddressThatItIsGiven) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  RunStore store = join(environment);
  EXPECT_TRUE(listens("127.0.0.1", environment.master_port));
  EXPECT_FALSE(listens("127.0.0.2", environment.master_port));
  EXPECT_EQ(exchange_texts(store, environment, "test", "text"), std::vector<std::string>{"text"});
}

TEST(RunStore, ListensAtAllAddressesOfAHostThatItIsGivenByName) {
  const LaunchEnvironment environment = alone_at("localhost");
  const RunStore store = join(environment);
  EXPECT_TRUE(listens("127.0.0.1", environment.master_port));
  EXPECT_TRUE(listens("127.0.0.2", environment.master_port));
}

TEST(RunStore, ComesAgainAtThePortOfTheLast) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(join(environment));
}

LaunchEnvironment one_of_two(int rank, int port) {
  return {.rank = rank, .world_size = 2, .local_rank = rank, .local_world_size = 2, .master_port = port};
}

TEST(RunStore, IsNotTheOneOfAnEarlierRendezvousThatRank0HasYetToEnd) {
  const int port = testing::free_port();
  std::latch met(2), rank_1_comes_again(1), done(2);
  const auto texts_of = [&](int rank) {
    const LaunchEnvironment environment = one_of_two(rank, port);
    RunStore first = join(environment);
    exchange_texts(first, environment, "test", "old");
    met.arrive_and_wait();
    if (rank == 0) {
      rank_1_comes_again.wait();
      std::this_thread::sleep_for(milliseconds(150));
    } else {
      rank_1_comes_again.count_down();
    }
    first.reset();
    RunStore second = join(environment);
    const auto texts = exchange_texts(second, environment, "test", "new");
    done.arrive_and_wait();  // rank 0 keeps the store until then
    return texts;
  };
  auto rank_1 = std::async(std::launch::async, texts_of, 1);
  const std::vector<std::string> both_new{"new", "new"};
  EXPECT_EQ(texts_of(0), both_new);
  EXPECT_EQ(rank_1.get(), both_new);
}

/// Rank 1 has joined the store of a rank 0 that ends before it has joined too.
TEST(RunStore, IsJoinedAgainIfItEndsBeforeAllHaveMet) {
  const LaunchEnvironment environment = one_of_two(1, testing::free_port());
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = true;
  options.waitWorkers = false;
  auto earlier = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  auto rank_1 = std::async(std::launch::async, [&] { return join(environment); });
  earlier->wait({"fsdp/0/joined/1"}, seconds(60));
  earlier.reset();
  RunStore store = join(one_of_two(0, environment.master_port));
  RunStore of_rank_1 = rank_1.get();
  of_rank_1->set("test", std::vector<uint8_t>{1});
  EXPECT_EQ(store->get("test"), std::vector<uint8_t>{1});
}

TEST(RunStore, IsJoinedAfterAnotherListenerHasHungUp) {
  const int port = testing::free_port();
  auto listener = std::make_unique<Listener>(port);
  auto rank_1 = std::async(std::launch::async, join, one_of_two(1, port));
  for (int i = 0; i < 2; ++i) listener->accept_and_reset();  // who asks whether somebody listens, and c10d
  listener.reset();
  RunStore store = join(one_of_two(0, port));
  EXPECT_NO_THROW(rank_1.get());
}

/// Two runs at one port: rank 0 of the second cannot listen there, and rank 1 must not take part in the first.
TEST(RunStore, NamesOneThatItHasJoinedBefore) {
  const int port = testing::free_port();
  auto rank_1 = std::async(std::launch::async, join, one_of_two(1, port));
  RunStore store = join(one_of_two(0, port));
  const RunStore of_rank_1 = rank_1.get();
  try {
    join_run_store(one_of_two(1, port), seconds(1));
    ADD_FAILURE() << "joined twice";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kTimeout);
    EXPECT_NE(std::string(error.what()).find("rank 1 has joined the store there before"), std::string::npos)
        << error.what();
  }
}

TEST(CallWithin, HasLetGoOfTheBodyWhenItReturns) {
  for (int i = 0; i < 100; ++i) {
    const auto shared = std::make_shared<int>(i);
    EXPECT_EQ(call_within(seconds(60), [shared] { return *shared; }), i);
    ASSERT_EQ(shared.use_count(), 1);
    const auto fails = [shared]() -> int { throw std::runtime_error("no"); };
    EXPECT_THROW(call_within(seconds(60), fails), std::runtime_error);
    ASSERT_EQ(shared.use_count(), 2);  // `fails`
  }
}

TEST(FirstLine, IsWithoutAddressesThatWereNeverSet) {
  EXPECT_EQ(first_line("Connection closed by peer [249.85.0.0]:0\nframe #0"), "Connection closed by peer");
  EXPECT_EQ(first_line("no way to 249.85.0.0, and no other"), "no way to, and no other");
  for (const char* kept : {"peer [10.0.0.1]:4711", "listens at 0.0.0.0:80"})
    EXPECT_EQ(first_line(kept), kept);
}

TEST(RunStore, NamesAPortThatIsInUse) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  const RunStore first = join(environment);
  try {
    join(environment);
    ADD_FAILURE() << "two at one port";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), util::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(std::to_string(environment.master_port)), std::string::npos)
        << error.what();
  }
}

TEST(NcclCause, IsWhatNcclItselfHasSeen) {
  EXPECT_EQ(nccl_cause("NCCL error in: NCCLUtils.cpp:94, invalid usage, NCCL version 2.28.9\n"
                       "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                       "Last error:\n"
                       "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000\n"
                       "Exception raised from checkForNCCLErrorsInternal at ...\n"),
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000");
}

TEST(NcclCause, IsTheNameOfTheErrorWhereNcclSaysNoMore) {
  EXPECT_EQ(nccl_cause("NCCL error in: x.cpp:1, remote process exited or there was a network error\n"
                       "ncclRemoteError: A call failed possibly due to a network error.\n"
                       "Last error:\n"
                       "\n"
                       "Exception raised from f at ...\n"),
            "ncclRemoteError: A call failed possibly due to a network error.");
  EXPECT_EQ(nccl_cause("wait timeout after 5000ms\nException raised from ..."), "wait timeout after 5000ms");
}

}  // namespace
}  // namespace fsdp::comm
