// What the ranks of a group agree on once it has failed.

#include "comm/group_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

/// What each rank learns, of whom rank i has sights[i].
std::vector<GroupFailure> share(const std::vector<Late>& sights) {
  const RunStore store = c10::make_intrusive<c10d::HashStore>();
  std::vector<GroupFailure> failures(sights.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < sights.size(); ++i) {
    ranks.emplace_back([&, i] {
      GroupIdentity group;
      group.rank = static_cast<int>(i);
      group.run_size = static_cast<int>(sights.size());
      for (int rank = 0; rank < group.run_size; ++rank) group.ranks.push_back(rank);
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

}  // namespace
}  // namespace fsdp::comm
