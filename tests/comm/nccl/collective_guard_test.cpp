// Ranks are threads here, and the device's collectives are what the tests say of them.

#include "comm/nccl/collective_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/util/error.h"

namespace fsdp::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Outcome = CollectiveGuard::Outcome;

/// A rank of a run, with a device whose collectives stand as told.
struct Rank {
  explicit Rank(RunStore store, int rank = 0, int size = 1, milliseconds timeout = seconds(60),
                milliseconds grace = seconds(5))
      : guard({.identity = run_identity({rank, size, rank, size, "127.0.0.1", 0}),
               .store = std::move(store),
               .prefix = "group",
               .timeout = timeout,
               .grace = grace,
               .abort = [this] { ++aborts; },
               .activity = activity}) {}

  int64_t add(const std::string& unit, std::shared_ptr<std::atomic<Outcome>> outcome) {
    return guard.add("all_gather", {.unit = unit, .pass = "forward"}, [outcome] { return outcome->load(); });
  }

  /// The failure; empty if there is none.
  std::string failure(ErrorKind kind) {
    try {
      guard.check();
      return "";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
  }

  std::atomic<int> aborts = 0;
  std::shared_ptr<Activity> activity = std::make_shared<Activity>();
  CollectiveGuard guard;
};

std::shared_ptr<std::atomic<Outcome>> stands(Outcome outcome) {
  return std::make_shared<std::atomic<Outcome>>(outcome);
}

RunStore new_store() { return c10::make_intrusive<c10d::HashStore>(); }

/// Until it is true, at most five seconds.
bool becomes(const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
  return condition();
}

TEST(CollectiveGuard, SaysNothingWhileCollectivesEnd) {
  Rank rank(new_store());
  const auto first = stands(Outcome::kUnderWay), second = stands(Outcome::kUnderWay);
  rank.add("layer 1", first);
  const int64_t number = rank.add("layer 2", second);
  rank.guard.check();
  *first = *second = Outcome::kDone;
  rank.guard.finish(number);
  EXPECT_FALSE(rank.guard.failed());
  EXPECT_EQ(rank.aborts, 0);
}

TEST(CollectiveGuard, NamesTheOldestThatFailed) {
  Rank rank(new_store());
  rank.add("layer 1", stands(Outcome::kDone));
  rank.add("layer 2", stands(Outcome::kTimedOut));
  rank.add("layer 3", stands(Outcome::kFailed));
  EXPECT_THAT(rank.failure(ErrorKind::kTimeout),
              AllOf(HasSubstr("all_gather of layer 2 (forward) failed on rank 0 of 1"),
                    HasSubstr("no result within 60 s (comm.timeout_seconds)")));
  EXPECT_EQ(rank.aborts, 1);
  EXPECT_THAT(rank.failure(ErrorKind::kTimeout), HasSubstr("layer 2")) << "the same from now on";
  EXPECT_THROW(rank.guard.finish(0), util::Error);
  EXPECT_EQ(rank.aborts, 1);
}

TEST(CollectiveGuard, EndsWhatRunsThoughNobodyCalls) {
  Rank rank(new_store());
  rank.add("layer 1", stands(Outcome::kFailed));
  EXPECT_TRUE(becomes([&] { return rank.aborts == 1; }));
  EXPECT_THAT(rank.failure(ErrorKind::kPeerLost), HasSubstr("layer 1"));
}

TEST(CollectiveGuard, CallsACollectiveLateWhereTheDeviceDoesNot) {
  Rank rank(new_store(), 0, 1, milliseconds(200), milliseconds(100));
  rank.add("layer 1", stands(Outcome::kUnderWay));
  EXPECT_TRUE(becomes([&] { return rank.aborts == 1; }));
  EXPECT_THAT(rank.failure(ErrorKind::kTimeout), HasSubstr("no result within 0.2 s"));
}

TEST(CollectiveGuard, CountsTheTimeOfACollectiveFromTheEndOfTheOneBefore) {
  Rank rank(new_store(), 0, 1, milliseconds(700), milliseconds(0));
  std::vector<std::shared_ptr<std::atomic<Outcome>>> outcomes;
  for (int i = 0; i < 4; ++i) rank.add("layer", outcomes.emplace_back(stands(Outcome::kUnderWay)));
  for (const auto& outcome : outcomes) {
    std::this_thread::sleep_for(milliseconds(300));
    *outcome = Outcome::kDone;
    rank.guard.check();
  }
  EXPECT_EQ(rank.aborts, 0);
}

TEST(CollectiveGuard, TellsRanksThatWaitAndNamesThoseThatDoNot) {
  const RunStore store = new_store();
  Rank first(store, 0, 3), waiting(store, 1, 3), computing(store, 2, 3);
  waiting.add("layer 1", stands(Outcome::kUnderWay));
  first.add("layer 1", stands(Outcome::kTimedOut));
  std::thread other([&] {
    EXPECT_TRUE(becomes([&] { return waiting.guard.failed(); })) << "long before its own time-out";
    EXPECT_THAT(waiting.failure(ErrorKind::kTimeout),
                AllOf(HasSubstr("all_gather of layer 1 (forward) failed on rank 1 of 3"),
                      HasSubstr("no answer from rank 2"), HasSubstr("rank 0 noticed first")));
    EXPECT_EQ(waiting.aborts, 1);
  });
  EXPECT_THAT(first.failure(ErrorKind::kTimeout), HasSubstr("no answer from rank 2"));
  other.join();
  EXPECT_FALSE(computing.guard.failed());
}

TEST(CollectiveGuard, TakesARefusalForAFailureOfTheGroup) {
  Rank rank(new_store());
  try {
    rank.guard.fail("reduce_scatter of layer 1 (backward)",
                    {.timeout = false, .cause = "ncclRemoteError: gone"});
    FAIL();
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("reduce_scatter of layer 1 (backward) failed on rank 0"),
                                    HasSubstr("ncclRemoteError: gone")));
  }
  EXPECT_THAT(rank.failure(ErrorKind::kPeerLost), HasSubstr("reduce_scatter of layer 1"));
}

TEST(CollectiveGuard, TellsTheActivityOfTheOldest) {
  Rank rank(new_store());
  const auto first = stands(Outcome::kUnderWay), second = stands(Outcome::kUnderWay);
  rank.add("layer 1", first);
  const int64_t number = rank.add("layer 2", second);
  EXPECT_EQ(rank.activity->snapshot().collective, "all_gather of layer 1 (forward)");
  *first = Outcome::kDone;
  rank.guard.check();
  EXPECT_EQ(rank.activity->snapshot().collective, "all_gather of layer 2 (forward)");
  *second = Outcome::kDone;
  rank.guard.finish(number);
  EXPECT_EQ(rank.activity->snapshot().collective, "");
  EXPECT_EQ(rank.activity->snapshot().collectives, 2);
}

}  // namespace
}  // namespace fsdp::comm
