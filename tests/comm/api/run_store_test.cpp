#include "comm/api/run_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/util/error.h"
#include "base/util/text.h"
#include "comm/api/rank_tree.h"
#include "comm/shm/host_ranks.h"
#include "support/free_port.h"

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
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
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

/// Of the texts of all, in the order of ranks.
TextMeeting in_order(const std::string& purpose, std::vector<int> ranks = {}) {
  return {.purpose = purpose,
          .combine = [](const std::vector<std::string>& texts) { return util::join(texts, " "); },
          .ranks = std::move(ranks)};
}

bool listens(const std::string& host, int port) {
  return wait_for_listener(host, port, Clock::time_point::min());
}

TEST(RunStore, ListensOnlyAtALoopbackAddressThatItIsGiven) {
  const LaunchEnvironment environment = alone_at("127.0.0.1");
  RunStore store = join(environment);
  EXPECT_TRUE(listens("127.0.0.1", environment.master_port));
  EXPECT_FALSE(listens("127.0.0.2", environment.master_port));
  EXPECT_EQ(combine_texts(store, environment, in_order("test"), "text"), "text");
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
    combine_texts(first, environment, in_order("test"), "old");
    met.arrive_and_wait();
    if (rank == 0) {
      rank_1_comes_again.wait();
      std::this_thread::sleep_for(milliseconds(150));
    } else {
      rank_1_comes_again.count_down();
    }
    first.reset();
    RunStore second = join(environment);
    const auto texts = combine_texts(second, environment, in_order("test"), "new");
    done.arrive_and_wait();  // rank 0 keeps the store until then
    return texts;
  };
  auto rank_1 = std::async(std::launch::async, texts_of, 1);
  const std::string both_new = "new new";
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

/// Two runs at one port: rank 0 of the second cannot listen there, and rank 1 must not take part in the
/// first.
TEST(RunStore, NamesOneThatItHasJoinedBefore) {
  const int port = testing::free_port();
  auto rank_1 = std::async(std::launch::async, join, one_of_two(1, port));
  RunStore store = join(one_of_two(0, port));
  const RunStore of_rank_1 = rank_1.get();
  try {
    join_run_store(one_of_two(1, port), seconds(1));
    ADD_FAILURE() << "joined twice";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(error.what()).find("rank 1 has joined the store there before"), std::string::npos)
        << error.what();
  }
}

TEST(RunStore, SaysAtRank0WhichRanksHaveNotCome) {
  LaunchEnvironment environment{.rank = 0, .world_size = 5, .local_world_size = 5};
  environment.master_port = testing::free_port();
  std::vector<std::future<RunStore>> others;
  for (int rank : {1, 3}) {
    LaunchEnvironment other = environment;
    other.rank = rank;
    others.push_back(std::async(std::launch::async, [other] { return join_run_store(other, seconds(1)); }));
  }
  try {
    join_run_store(environment, seconds(1));
    ADD_FAILURE() << "without ranks 2 and 4";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(error.what()).find("no word from ranks 2, 4"), std::string::npos) << error.what();
  }
  for (auto& other : others) EXPECT_THROW(other.get(), util::Error);
}

/// Counts what one rank reads from a store that all share, and writes to it.
class TrafficStore final : public c10d::Store {
 public:
  explicit TrafficStore(RunStore shared) : shared_(std::move(shared)) {}
  int64_t entries() const { return entries_; }
  int64_t bytes() const { return bytes_; }

  using Store::set;
  c10::intrusive_ptr<Store> clone() override { return shared_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(value);
    shared_->set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override { return count(shared_->get(key)); }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    auto values = shared_->multiGet(keys);
    for (const auto& value : values) count(value);
    return values;
  }
  int64_t add(const std::string& key, int64_t value) override { return shared_->add(key, value); }
  bool deleteKey(const std::string& key) override { return shared_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return shared_->check(keys); }
  int64_t getNumKeys() override { return shared_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { shared_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    shared_->wait(keys, timeout);
  }

 private:
  const std::vector<uint8_t>& count(const std::vector<uint8_t>& value) {
    ++entries_;
    bytes_ += static_cast<int64_t>(value.size());
    return value;
  }

  const RunStore shared_;
  std::atomic<int64_t> entries_ = 0, bytes_ = 0;
};

/// What the ranks of a world, which are threads, read and write.
struct Traffic {
  int64_t most_entries = 0, entries = 0;  ///< of one rank, of all
};

Traffic traffic_of(int world_size,
                   const std::function<void(RunStore& store, const LaunchEnvironment&)>& body) {
  const RunStore shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<TrafficStore>> stores;
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    stores.push_back(c10::make_intrusive<TrafficStore>(shared));
    ranks.push_back(std::async(std::launch::async, [&body, rank, world_size, own = stores.back()] {
      RunStore store = own;
      body(store, {.rank = rank, .world_size = world_size});
    }));
  }
  for (auto& rank : ranks) rank.get();
  Traffic traffic;
  for (const auto& store : stores) {
    traffic.most_entries = std::max(traffic.most_entries, store->entries());
    traffic.entries += store->entries();
  }
  return traffic;
}

TEST(CombineTexts, GivesAllRanksTheTextsInTheirOrder) {
  for (int world_size : {1, 2, 16, 17, 40, 257}) {
    std::string expected = "0";
    for (int rank = 1; rank < world_size; ++rank) expected += concat(" ", rank);
    std::atomic<int> right = 0;
    traffic_of(world_size, [&](RunStore& store, const LaunchEnvironment& environment) {
      for (const char* purpose : {"first", "second"}) {
        const std::string own = std::to_string(environment.rank);
        right += combine_texts(store, environment, in_order(purpose), own) == expected;
      }
    });
    EXPECT_EQ(right, 2 * world_size);
  }
}

TEST(CombineTexts, IsAmongSomeRanksBesideOthers) {
  traffic_of(6, [&](RunStore& store, const LaunchEnvironment& environment) {
    const bool odd = environment.rank % 2 == 1;
    const std::vector<int> ranks = odd ? std::vector{1, 3, 5} : std::vector{0, 2, 4};
    const std::string own = std::to_string(environment.rank);
    EXPECT_EQ(combine_texts(store, environment, in_order("test", ranks), own), odd ? "1 3 5" : "0 2 4");
  });
}

/// Up the tree a rank writes one entry, and reads those of the others in each of its groups; then all read
/// one.
TEST(CombineTexts, TakesEntriesPerRankThatGrowWithTheLogarithmOfTheWorld) {
  for (int world_size : {4, 16, 64, 256, 300}) {
    const Traffic traffic = traffic_of(world_size, [](RunStore& store, const LaunchEnvironment& environment) {
      const TextMeeting meeting{.purpose = "test",
                                .combine = [](const auto&) { return std::string("together"); }};
      combine_texts(store, environment, meeting, "one");
    });
    int levels = 1;
    for (int64_t reach = RankTree::kFanIn; reach < world_size; reach *= RankTree::kFanIn) ++levels;
    EXPECT_LE(traffic.most_entries, levels * (RankTree::kFanIn - 1) + 2) << world_size;
    // Each but rank 0 is written, read by one, and reads the result, which rank 0 writes.
    EXPECT_EQ(traffic.entries, 3 * (world_size - 1) + 1) << world_size;
  }
}

TEST(CallTheRoll, TakesEntriesPerRankThatGrowWithTheLogarithmOfTheWorld) {
  const auto of_hosts = [](int world_size, int per_host) {
    return traffic_of(world_size, [=](RunStore& store, const LaunchEnvironment& environment) {
      const HostIdentity identity{concat("host ", environment.rank / per_host), "pid", "net"};
      const HostRoll roll = call_the_roll(environment, store, identity, "");
      EXPECT_EQ(roll.obstacle, "");
      EXPECT_EQ(roll.apart,
                world_size == per_host ? "" : concat("ranks 0 and ", per_host, " are on different hosts"));
      ASSERT_EQ(roll.hosts.size(), static_cast<size_t>(world_size));
      for (int rank = 0; rank < world_size; ++rank)
        EXPECT_EQ(roll.hosts[static_cast<size_t>(rank)], rank / per_host);
    });
  };
  for (int per_host : {1, 4}) {
    const Traffic small = of_hosts(4, per_host), large = of_hosts(64, per_host);
    EXPECT_LE(small.most_entries, RankTree::kFanIn + 1);
    EXPECT_LE(large.most_entries, 2 * RankTree::kFanIn);
    EXPECT_EQ(large.entries, 3 * 63 + 1);
  }
  // A rank that combines nothing reads the result alone, whose size does not depend on the number of hosts.
  std::atomic<int64_t> of_small = 0, of_large = 0;
  const auto result_bytes = [](int world_size, std::atomic<int64_t>& bytes) {
    traffic_of(world_size, [&](RunStore& store, const LaunchEnvironment& environment) {
      const HostIdentity identity{concat("host ", environment.rank / 2), "pid", "net"};
      call_the_roll(environment, store, identity, "");
      if (environment.rank != world_size - 1) return;
      bytes = dynamic_cast<TrafficStore&>(*store).bytes();
    });
  };
  result_bytes(4, of_small);
  result_bytes(64, of_large);
  EXPECT_LE(of_large, of_small + 16);
}

TEST(CallTheRoll, NamesTheFirstObstacleAndTheFirstRankThatIsApart) {
  traffic_of(40, [](RunStore& store, const LaunchEnvironment& environment) {
    const int rank = environment.rank;
    const HostIdentity identity{"boot", rank < 21 ? "pid" : "other", "net"};
    const std::string obstacle = rank == 17 || rank == 39 ? "memory is out" : "";
    const HostRoll roll = call_the_roll(environment, store, identity, obstacle);
    EXPECT_EQ(roll.obstacle, "on rank 17 memory is out");
    EXPECT_EQ(roll.apart, "ranks 0 and 21 are in different containers and cannot see each other's processes");
  });
}

/// Ranks that are dealt out to the hosts, and hosts with other numbers of ranks.
TEST(CallTheRoll, KnowsRanksOfAHostThatDoNotFollowEachOther) {
  const std::vector<int> hosts{0, 1, 2, 0, 1, 2, 2, 2, 3, 3, 0, 4, 4, 1, 5, 6, 7, 7, 0};
  traffic_of(static_cast<int>(hosts.size()), [&](RunStore& store, const LaunchEnvironment& environment) {
    const int host = hosts[static_cast<size_t>(environment.rank)];
    EXPECT_EQ(call_the_roll(environment, store, {concat("host ", host), "pid", "net"}, "").hosts, hosts);
  });
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
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
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
