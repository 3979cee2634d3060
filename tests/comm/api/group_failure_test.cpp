// What the ranks of a group agree on once it has failed.

#include "comm/api/group_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Late {
  FailureSight sight;
  milliseconds after{0};  ///< the first rank's
};

GroupIdentity member(int rank, int size) {
  GroupIdentity group;
  group.rank = rank;
  group.run_size = size;
  for (int each = 0; each < size; ++each) group.ranks.push_back(each);
  return group;
}

/// What each rank learns, of whom rank i has sights[i].
std::vector<GroupFailure> share(const std::vector<Late>& sights) {
  const RunStore store = c10::make_intrusive<c10d::HashStore>();
  std::vector<GroupFailure> failures(sights.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < sights.size(); ++i) {
    ranks.emplace_back([&, i] {
      const GroupIdentity group = member(static_cast<int>(i), static_cast<int>(sights.size()));
      std::this_thread::sleep_for(sights[i].after);
      failures[i] = share_failure(store, "group", group, sights[i].sight, [] {});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return failures;
}

const FailureSight kTimeUp{.timeout = true, .what = "all_reduce of loss", .cause = "timed out"};
const FailureSight kClosed{
    .closed = true, .what = "all_reduce of norm", .cause = "connection closed by peer"};

// gloo closes a rank's connections when its time is up, before that rank can say so.
TEST(FailureReport, LeavesTheFirstWordToWhoClosedTheConnection) {
  for (const GroupFailure& failure : share({{kTimeUp, milliseconds(100)}, {kClosed}})) {
    EXPECT_TRUE(failure.timeout) << failure.cause;
    EXPECT_THAT(failure.cause, HasSubstr("timed out; rank "));
    EXPECT_THAT(failure.cause, HasSubstr("is in another collective, all_reduce of "));
  }
}

TEST(FailureReport, OfAClosedConnectionThatNobodyExplainsIsOfALostPeer) {
  const auto begin = Clock::now();
  for (const GroupFailure& failure : share({{kClosed}, {kClosed, milliseconds(10)}})) {
    EXPECT_FALSE(failure.timeout);
    EXPECT_THAT(failure.cause, HasSubstr("connection closed by peer"));
  }
  EXPECT_LT(Clock::now() - begin, milliseconds(5'000));
}

TEST(FailureReport, TheFirstWhoKnowsSpeaksForAll) {
  const FailureSight killed{.what = "barrier", .cause = "it has ended", .silent = {2}};
  for (const GroupFailure& failure : share({{killed}, {kTimeUp, milliseconds(200)}})) {
    EXPECT_FALSE(failure.timeout);
    EXPECT_THAT(failure.cause, HasSubstr("it has ended"));
    EXPECT_EQ(failure.silent_ranks, std::vector<int>{2});
  }
}

TEST(FailureReport, NobodyWaitsForOthersOnceTheLauncherKnowsWhoIsLost) {
  GroupIdentity group = member(1, 3);
  group.is_broken_off = [] { return true; };
  const GroupFailure failure =
      share_failure(c10::make_intrusive<c10d::HashStore>(), "group", group, kClosed, [] {});
  EXPECT_FALSE(failure.timeout);
  EXPECT_THAT(failure.silent_ranks, ::testing::IsEmpty())
      << "no report of ranks 0 and 2 can have been awaited";
}

/// A store in which rank 1 says late that it has read the reports.
class StoreOfASlowReader final : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    if (key == "group/read/1") {
      std::this_thread::sleep_for(milliseconds(500));
      was_read = true;
    }
    c10d::HashStore::set(key, data);
  }
  std::atomic<bool> was_read = false;
};

// Its process may host the store.
TEST(FailureReport, Rank0StaysUntilAllHaveReadTheReports) {
  const auto store = c10::make_intrusive<StoreOfASlowReader>();
  std::thread other([&] { share_failure(store, "group", member(1, 2), kTimeUp, [] {}); });
  share_failure(store, "group", member(0, 2), kTimeUp, [] {});
  EXPECT_TRUE(store->was_read);
  other.join();
}

}  // namespace
}  // namespace fsdp::comm
