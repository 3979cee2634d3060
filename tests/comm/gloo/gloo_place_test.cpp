// How ranks get connected over gloo.

#include "comm/gloo/gloo_place.h"

#include <c10/util/env.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "support/connected_ranks.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// A store in this process, of one rank, that runs `before` at each count of the ranks that are connected.
class CountingStore final : public c10d::Store {
 public:
  CountingStore(c10::intrusive_ptr<c10d::Store> inner, std::function<void()> before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return inner_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override { inner_->set(key, value); }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return inner_->compareSet(key, expected, desired);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++reads_;
    return inner_->get(key);
  }
  int reads() const { return reads_; }
  int64_t add(const std::string& key, int64_t value) override {
    if (before_) before_();
    return inner_->add(key, value);
  }
  bool deleteKey(const std::string& key) override { return inner_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return inner_->check(keys); }
  int64_t getNumKeys() override { return inner_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { inner_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    inner_->wait(keys, timeout);
  }

 private:
  c10::intrusive_ptr<c10d::Store> inner_;
  std::function<void()> before_;
  std::atomic<int> reads_ = 0;
};

/// What connecting two ranks says on each, "" where nothing went wrong, and when rank 0 was through.
struct Connected {
  std::string errors[2];
  Clock::time_point first_at;
};

Connected connect_two(const std::function<void()>& before_rank_1_is_counted) {
  const RunStore store = c10::make_intrusive<c10d::HashStore>();
  Connected result;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      GlooPlace place{.store = store, .address = "127.0.0.1", .timeout = milliseconds(20'000)};
      if (rank == 1) place.store = c10::make_intrusive<CountingStore>(store, before_rank_1_is_counted);
      try {
        connect_gloo(place, "test", rank, 2);
      } catch (const std::exception& error) {
        result.errors[rank] = first_line(error.what());
      }
      if (rank == 0) result.first_at = Clock::now();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return result;
}

TEST(GlooConnecting, SurvivesPeersThatLeaveAtOnce) {
  for (int round = 0; round < 40; ++round) {
    ASSERT_NO_THROW(testing::run_ranks_over_gloo({.queued = false}, [](auto&) {})) << "round " << round;
  }
}

/// Of the entries of all others, which gloo would ask for one by one.
TEST(GlooConnecting, ReadsWhatTheOthersHaveToSayUpAndDownATree) {
  constexpr int kRanks = 20;
  const RunStore shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<CountingStore>> stores;
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    stores.push_back(c10::make_intrusive<CountingStore>(shared, nullptr));
    ranks.push_back(std::async(std::launch::async, [rank, store = stores.back()] {
      const GlooPlace place{.store = store, .address = "127.0.0.1", .timeout = milliseconds(20'000)};
      connect_gloo(place, "test", rank, kRanks);
    }));
  }
  for (auto& rank : ranks) EXPECT_NO_THROW(rank.get());
  EXPECT_LE(stores[0]->reads(), 15 + 1 + 1)
      << "its group, the first of the other group, and that all are connected";
  EXPECT_LE(stores[kRanks - 1]->reads(), 2);
}

TEST(GlooConnecting, IsOverForNobodyBeforeAllAreConnected) {
  Clock::time_point counted{};
  const Connected result = connect_two([&] {
    if (counted != Clock::time_point{}) return;
    std::this_thread::sleep_for(milliseconds(100));
    counted = Clock::now();
  });
  EXPECT_EQ(result.errors[0], "");
  EXPECT_EQ(result.errors[1], "");
  ASSERT_NE(counted, Clock::time_point{});
  EXPECT_GE(result.first_at, counted);
}

TEST(GlooConnecting, EndsAtOnceForAllWhenItFailsOnOne) {
  const auto begin = Clock::now();
  const Connected result = connect_two([] { throw std::runtime_error("out of descriptors"); });
  EXPECT_EQ(result.errors[1], "out of descriptors");
  EXPECT_EQ(result.errors[0], "a peer could not connect: out of descriptors");
  EXPECT_LT(Clock::now() - begin, milliseconds(10'000));
}

/// Threads that use different groups would write its map without a lock.
TEST(GlooConnecting, TurnsOffTheFlightRecorderOfC10d) {
  c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "2000");
  testing::run_ranks_over_gloo({.queued = false}, [](auto&) {});
  EXPECT_EQ(c10::utils::get_env("TORCH_FR_BUFFER_SIZE"), "0");
}

// libtorch reads the variable once, so the check runs in a process of its own.
TEST(GlooConnectingDeathTest, RefusesATransportThatLibtorchLacks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto place_with = [](const char* transport) {
    ::setenv("GLOO_DEVICE_TRANSPORT", transport, /*overwrite=*/1);
    try {
      gloo_place(LaunchEnvironment(), CommOptions(), RunStore());
    } catch (const util::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(static_cast<int>(error.kind()));
    }
    std::exit(0);
  };
  EXPECT_EXIT(
      place_with("TCP_NONE"), ::testing::ExitedWithCode(2),
      "GLOO_DEVICE_TRANSPORT must be a transport that libtorch's gloo was built with, but is TCP_NONE");
  EXPECT_EXIT(place_with("TCP"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(place_with(""), ::testing::ExitedWithCode(0), "");
}

TEST(GlooConnecting, OfOneRankNeedsNobody) {
  const GlooPlace place{
      .store = c10::make_intrusive<c10d::HashStore>(), .address = "127.0.0.1", .timeout = milliseconds(1000)};
  EXPECT_NO_THROW(connect_gloo(place, "test", 0, 1));
}

}  // namespace
}  // namespace fsdp::comm
