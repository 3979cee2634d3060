#include "tools/launch/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "base/util/error.h"
#include "base/util/log.h"

namespace fsdp::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Three replicas of two workers, a clock that is set by hand, and what was ordered, in words.
class MembershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_sink([](util::LogLevel, std::string_view) {});
  }
  void TearDown() override { util::set_log_sink({}); }

  void make(int max_restarts, int min_replicas = 1) {
    const auto note = [this](const char* what) {
      return [this, what](int replica, int incarnation, const auto&...) {
        orders_.push_back(concat(what, " ", replica));
        incarnations_[replica] = incarnation;
      };
    };
    membership_.emplace(Membership::Settings{.replicas = 3,
                                             .replica_size = 2,
                                             .min_replicas = min_replicas,
                                             .max_restarts = max_restarts,
                                             .join_timeout_seconds = 60,
                                             .stop_timeout_seconds = 5,
                                             .pause_grace_seconds = 1,
                                             .fence_seconds = 20,
                                             .start = note("start"),
                                             .fence = note("fence"),
                                             .pause = note("pause"),
                                             .break_off = note("break off"),
                                             .begin = note("begin"),
                                             .over = [this](const Verdict& verdict) { verdict_ = verdict; }});
    membership_->begin(now_);
  }
  void ready(int replica) {
    for (int index : {0, 1}) {
      membership_->said(2 * replica + index, incarnations_[replica], {.port = 1000 + replica}, now_);
    }
  }
  void start_all(int max_restarts, int min_replicas = 1) {
    make(max_restarts, min_replicas);
    for (int replica : {0, 1, 2}) ready(replica);
    orders_.clear();
  }
  void stopped(int rank, int64_t step, bool can_finish = false, std::vector<int> suspects = {}) {
    membership_->said(rank, incarnations_[rank / 2],
                      {.kind = WorkerReport::ReportKind::kStopped,
                       .epoch = membership_->epoch().number,
                       .step = step,
                       .can_finish_step = can_finish,
                       .suspects = std::move(suspects)},
                      now_);
  }
  void ended(int rank, int code) {
    membership_->ended(rank, incarnations_[rank / 2], {.rank = rank, .status = {.exit_code = code}}, now_);
  }
  void pass(double seconds) {
    now_ += std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    membership_->tick(now_);
  }
  std::vector<std::string> take_orders() { return std::exchange(orders_, {}); }
  const Epoch& epoch() { return membership_->epoch(); }

  Membership::Time now_ = std::chrono::steady_clock::now();
  std::optional<Membership> membership_;
  std::vector<std::string> orders_;
  std::map<int, int> incarnations_;
  std::optional<Verdict> verdict_;
};

TEST_F(MembershipTest, BeginsOnceAllAreReady) {
  make(0);
  EXPECT_THAT(take_orders(), ElementsAre("start 0", "start 1", "start 2"));
  ready(2);
  ready(0);
  EXPECT_THAT(take_orders(), IsEmpty());
  ready(1);
  EXPECT_THAT(take_orders(), ElementsAre("begin 0", "begin 1", "begin 2"));
  EXPECT_EQ(epoch().number, 1);
  EXPECT_EQ(epoch().step, -1);
  EXPECT_EQ(epoch().world_size(), 6);
  EXPECT_EQ(epoch().master_port, 1000);
}

TEST_F(MembershipTest, TheOthersGoOnWithoutALostReplicaAndTakeItsNextIncarnationIn) {
  start_all(1);
  ended(3, 9);
  EXPECT_THAT(take_orders(), ElementsAre("fence 1", "break off 0", "break off 2"));
  for (int rank : {0, 1, 4, 5}) stopped(rank, 7);
  EXPECT_THAT(take_orders(), ElementsAre("begin 0", "begin 2"));
  EXPECT_THAT(epoch().replicas, ElementsAre(0, 2));
  EXPECT_EQ(epoch().step, 7);
  EXPECT_EQ(epoch().rank_of(4), 2);
  ended(2, 137);
  EXPECT_THAT(take_orders(), ElementsAre("start 1"));
  ready(1);
  EXPECT_THAT(take_orders(), ElementsAre("pause 0", "pause 2"));
  for (int rank : {0, 1, 4, 5}) stopped(rank, 9);
  EXPECT_THAT(take_orders(), ElementsAre("begin 0", "begin 1", "begin 2"));
  EXPECT_EQ(epoch().step, 9);
  EXPECT_THAT(epoch().sources, ElementsAre(0, 1));
  EXPECT_THAT(epoch().behind, ElementsAre(2, 3));
}

TEST_F(MembershipTest, ContinuesAfterTheLatestStepWithTheOthersBehind) {
  start_all(0);
  ended(5, 9);
  stopped(0, 7);
  stopped(1, 8);
  stopped(2, 8);
  stopped(3, 7, /*can_finish=*/true);
  EXPECT_EQ(epoch().step, 8);
  EXPECT_THAT(epoch().sources, ElementsAre(2, 1));
  EXPECT_THAT(epoch().behind, ElementsAre(0)) << "rank 3 finishes the step by itself";
}

TEST_F(MembershipTest, APartOfTheStateMayComeFromAWorkerThatStillHasToFinishTheStep) {
  start_all(0);
  ended(5, 9);
  stopped(0, 8);
  stopped(2, 8);
  stopped(1, 7);
  stopped(3, 7, /*can_finish=*/true);
  EXPECT_THAT(epoch().sources, ElementsAre(0, 3));
  EXPECT_THAT(epoch().behind, ElementsAre(1));
}

TEST_F(MembershipTest, StartsAllFromACheckpointWhenPartOfTheStateIsLost) {
  start_all(1);
  ended(5, 9);
  stopped(0, 8);
  stopped(2, 8);
  stopped(1, 7);
  stopped(3, 7);
  take_orders();
  for (int rank : {0, 1, 2, 3, 4}) ended(rank, 137);
  EXPECT_THAT(take_orders(), ElementsAre("start 0", "start 1", "start 2"));
  for (int replica : {0, 1, 2}) ready(replica);
  EXPECT_EQ(epoch().step, -1);
  EXPECT_EQ(epoch().number, 2);
}

TEST_F(MembershipTest, LosesThoseThatDoNotAnswerAndKeepsSuspectsThatDo) {
  start_all(0);
  stopped(0, 7, false, {2, 4});
  EXPECT_THAT(take_orders(), ElementsAre("break off 0", "break off 1", "break off 2"));
  for (int rank : {1, 2, 3, 4}) stopped(rank, 7);
  pass(4.9);
  EXPECT_THAT(take_orders(), IsEmpty());
  pass(0.1);
  EXPECT_THAT(take_orders(), ElementsAre("fence 2", "begin 0", "begin 1"));
}

TEST_F(MembershipTest, LosesTheMostSuspectedWhenAttemptsFailAgainAndAgain) {
  start_all(0);
  for (int rank = 0; rank < 6; ++rank) stopped(rank, 7);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (int rank = 0; rank < 6; ++rank) stopped(rank, 7, false, {2});
    EXPECT_EQ(epoch().replicas.size(), 3u);
  }
  for (int rank = 0; rank < 6; ++rank) stopped(rank, 7, false, {2});
  EXPECT_THAT(epoch().replicas, ElementsAre(0, 2));
}

TEST_F(MembershipTest, AReplicaThatWasNotYetGivenTheStateIsNoSourceOfIt) {
  start_all(1, 1);
  for (int rank : {0, 3, 5}) ended(rank, 9);
  for (int rank : {1, 2, 4}) ended(rank, 137);
  for (int replica : {0, 1, 2}) ready(replica);
  for (int rank = 0; rank < 6; ++rank) stopped(rank, -1);
  EXPECT_EQ(epoch().number, 3);
  EXPECT_EQ(epoch().step, -1) << "from the checkpoint again";
}

TEST_F(MembershipTest, WorkersThatHearOfAPauseTooLateAreToldToBreakOff) {
  start_all(1);
  ended(3, 9);
  for (int rank : {0, 1, 4, 5}) stopped(rank, 7);
  ended(2, 137);
  ready(1);
  take_orders();
  for (int rank : {0, 1, 4}) stopped(rank, 9);
  EXPECT_EQ(membership_->next_due(), now_ + std::chrono::seconds(1));
  pass(1);
  EXPECT_THAT(take_orders(), ElementsAre("break off 2"));
  stopped(5, 8);
  EXPECT_THAT(epoch().behind, ElementsAre(2, 3, 5));
}

TEST_F(MembershipTest, WaitsForEnoughReplicasAndEndsByName) {
  start_all(2, 3);
  ended(3, 9);
  for (int rank : {0, 1, 4, 5}) stopped(rank, 7);
  ended(2, 137);
  take_orders();
  pass(59);
  EXPECT_FALSE(verdict_);
  pass(1);
  ASSERT_TRUE(verdict_);
  EXPECT_THAT(verdict_->cause, HasSubstr("only 2 of 3 replicas came within 60 seconds"));
  EXPECT_EQ(verdict_->exit_code, 9);
}

TEST_F(MembershipTest, DoesNotReadACheckpointWhileASilentNodeMayGoOn) {
  start_all(1);
  membership_->node_lost(2, 4, "no heartbeat", /*silent=*/true, now_);
  ended(0, 9);
  ended(1, 137);
  ready(0);
  membership_->node_found(2, 4, now_);
  ready(1);
  ready(2);
  EXPECT_EQ(epoch().number, 1);
  EXPECT_EQ(membership_->next_due(), now_ + std::chrono::seconds(20));
  pass(20);
  EXPECT_EQ(epoch().number, 2);
}

TEST_F(MembershipTest, DoesNotStartAReplicaAgainThatWouldEndSoAgain) {
  start_all(3);
  for (int rank = 0; rank < 6; ++rank) ended(rank, 8);
  EXPECT_THAT(orders_, ::testing::Not(::testing::Contains(HasSubstr("start"))));
  ASSERT_TRUE(verdict_);
  EXPECT_EQ(verdict_->exit_code, 8);
}

TEST_F(MembershipTest, IsOverWhenAReplicaHasDoneAllSteps) {
  start_all(1);
  for (int rank : {0, 1, 2, 3, 4}) ended(rank, 0);
  ended(5, 9);
  ASSERT_TRUE(verdict_);
  EXPECT_FALSE(verdict_->is_failure());
  EXPECT_EQ(verdict_->exit_code, 0);
}

}  // namespace
}  // namespace fsdp::launch
