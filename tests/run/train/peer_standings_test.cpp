#include "run/train/peer_standings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/util/log.h"

namespace fsdp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Ranks of one process, whose posts are in memory.
class PeerStandingsTest : public ::testing::Test {
 protected:
  struct Rank {
    std::shared_ptr<comm::Activity> activity = std::make_shared<comm::Activity>();
    std::unique_ptr<PeerStandings> standings;
  };

  void SetUp() override {
    util::set_log_sink([this](util::LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      said_.emplace_back(line);
    });
  }
  void TearDown() override { util::set_log_sink({}); }

  void make_ranks(int count) {
    boxes_.resize(static_cast<size_t>(count));
    for (int rank = 0; rank < count; ++rank) {
      ranks_.emplace_back();
      ranks_.back().standings = std::make_unique<PeerStandings>(posts_of(rank), ranks_.back().activity);
    }
  }

  PeerPosts posts_of(int rank) {
    return {.rank = rank,
            .world_size = static_cast<int>(boxes_.size()),
            .post =
                [this, rank](const std::string& text) {
                  const std::lock_guard lock(mutex_);
                  for (size_t other = 0; other < boxes_.size(); ++other) {
                    if (other != static_cast<size_t>(rank)) boxes_[other].emplace_back(rank, text);
                  }
                },
            .next = [this, rank]() -> std::optional<std::pair<int, std::string>> {
              const std::lock_guard lock(mutex_);
              auto& box = boxes_[static_cast<size_t>(rank)];
              if (box.empty()) return std::nullopt;
              auto post = std::move(box.front());
              box.pop_front();
              return post;
            },
            .has_ended =
                [this](int other) {
                  const std::lock_guard lock(mutex_);
                  return ended_.contains(other);
                }};
  }

  Rank& rank(int number) { return ranks_[static_cast<size_t>(number)]; }

  void begin_waiting(int number) {
    rank(number).activity->begin_step(4);
    rank(number).activity->begin_collective("all_gather", {.unit = "root", .pass = "forward"});
  }

  /// All of them fail at once, and are gone afterwards.
  void fail(const std::vector<std::pair<int, int>>& ranks_and_codes) {
    std::vector<std::thread> threads;
    for (const auto& [number, code] : ranks_and_codes) {
      threads.emplace_back([this, number = number, code = code] { rank(number).standings->tell(code); });
    }
    for (auto& thread : threads) thread.join();
  }

  std::mutex mutex_;
  std::vector<std::deque<std::pair<int, std::string>>> boxes_;
  std::set<int> ended_;
  std::vector<Rank> ranks_;
  std::vector<std::string> said_;
};

TEST_F(PeerStandingsTest, OneRankShowsWhereAllAre) {
  make_ranks(3);
  for (int number : {0, 1, 2}) begin_waiting(number);
  fail({{1, 6}, {2, 6}, {0, 6}});
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], AllOf(HasSubstr("state of the ranks:\n    rank 0 (pid "),
                              HasSubstr("\n    rank 1 (pid "), HasSubstr("\n    rank 2 (pid "),
                              HasSubstr("): in all_gather of root (forward), step 4, for ")));
}

TEST_F(PeerStandingsTest, ARankThatComputesAnswersThoseThatWaitForIt) {
  make_ranks(3);
  for (int number : {0, 2}) begin_waiting(number);
  rank(1).activity->begin_step(4);
  std::thread watchdog([this] {
    for (int looks = 0; looks < 50; ++looks) {
      rank(1).standings->answer();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  fail({{0, 6}, {2, 6}});
  watchdog.join();
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0],
              HasSubstr("\n    ranks 0 and 2 wait in all_gather of root (forward), step 4, for rank 1, "
                        "which is computing, step 4, no collective so far"));
}

TEST_F(PeerStandingsTest, ARankThatIsGoneIsNotWaitedFor) {
  make_ranks(2);
  begin_waiting(0);
  ended_ = {1};
  const auto begin = std::chrono::steady_clock::now();
  fail({{0, 5}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0],
              AllOf(HasSubstr("\n    rank 1: no report\n"),
                    HasSubstr("rank 0 waits in all_gather of root (forward), step 4, for rank 1, which "
                              "sent no report")));
}

TEST_F(PeerStandingsTest, ARankThatSaysNothingIsShownWithoutAReport) {
  make_ranks(3);
  for (int number : {0, 1}) begin_waiting(number);
  fail({{0, 6}, {1, 6}});
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0],
              AllOf(HasSubstr("\n    rank 2: no report\n"),
                    HasSubstr("ranks 0 and 1 wait in all_gather of root (forward), step 4, for rank 2")));
}

TEST_F(PeerStandingsTest, TheRankThatFailedByItselfIsShownWithItsExitCode) {
  make_ranks(2);
  begin_waiting(0);
  rank(1).activity->begin_step(4);
  std::thread watchdog([this] {
    for (int looks = 0; looks < 50; ++looks) {
      rank(0).standings->answer();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  fail({{1, 3}});
  watchdog.join();
  fail({{0, 5}});  // later, because of rank 1: all is said
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("computing, step 4, no collective so far; ended with exit code 3"));
}

}  // namespace
}  // namespace fsdp::train
