#include "tools/launch/coordinator.h"

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

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A coordinator, a clock that is set by hand, and what the nodes were ordered.
class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    util::set_log_sink([](util::LogLevel, std::string_view) {});
  }
  void TearDown() override { util::set_log_sink({}); }

  using Time = Coordinator::Time;

  Coordinator& make(NodeRange nodes, bool is_static, int max_restarts = 0, int replica_size = 0) {
    Coordinator::Settings settings;
    settings.terms.nodes = nodes;
    settings.terms.is_static = is_static;
    settings.terms.max_restarts = max_restarts;
    settings.terms.replica_size = replica_size;
    settings.join_timeout_seconds = 60;
    settings.last_call_timeout_seconds = 5;
    settings.master_addr = "host0";
    settings.free_port = [this] { return ++port_; };
    settings.send = [this](const std::vector<int>& ids, const Message& order) {
      ++sent_;
      for (int id : ids) orders_[id].push_back(order);
    };
    coordinator_.emplace(std::move(settings), now_);
    return *coordinator_;
  }

  std::string join(int id, int node_rank, int workers = 2, bool is_host = false) {
    return coordinator_->join(id,
                              {.host = concat("h", id),
                               .pid = 100 + id,
                               .node_rank = node_rank,
                               .workers = workers,
                               .is_host = is_host},
                              now_);
  }
  void ends(int id, int rank, int code, std::set<int> sent = {}) {
    const WorkerEnd end{.rank = rank, .pid = rank, .status = {.exit_code = code}, .stop_signals_sent = sent};
    coordinator_->worker_ended(id, end, now_);
    pending_[id].push_back(end);
  }
  void round_ended(int id) {
    coordinator_->round_ended(id, pending_[id], now_);
    pending_[id].clear();
  }
  void pass(double seconds) {
    now_ += std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    coordinator_->tick(now_);
  }
  /// The type of the last order to a node, "" without one.
  std::string last(int id) { return orders_[id].empty() ? "" : orders_[id].back().at("type"); }
  NodePlacement placement(int id) { return placement_from(orders_[id].back().at("placement")); }
  WorkerOrder order_of(int id) { return order_from(orders_[id].back().at("order")); }
  Verdict verdict(int id) { return verdict_from(orders_[id].back().at("verdict")); }

  Time now_ = Coordinator::Clock::now();
  int port_ = 1000;
  int sent_ = 0;  ///< orders, one that is for several nodes counted once
  std::optional<Coordinator> coordinator_;
  std::map<int, std::vector<Message>> orders_;
  std::map<int, std::vector<WorkerEnd>> pending_;
};

TEST_F(CoordinatorTest, StartsStaticNodesByTheirRanksOnceAllAreThere) {
  make({3, 3}, true);
  EXPECT_EQ(join(0, 2, 1), "");
  EXPECT_EQ(join(1, 0, 2, true), "");
  pass(30);
  EXPECT_EQ(last(1), "");
  EXPECT_EQ(join(2, 1, 4), "");
  EXPECT_EQ(placement(1).first_rank, 0);
  EXPECT_EQ(placement(2).first_rank, 2);
  EXPECT_EQ(placement(0).first_rank, 6);
  EXPECT_EQ(placement(0).node_rank, 2);
  EXPECT_EQ(placement(0).workers_per_node, 1);
  EXPECT_EQ(placement(0).world_size, 7);
  EXPECT_EQ(placement(0).master_addr, "host0");
  EXPECT_EQ(placement(0).master_port, 1001);
}

TEST_F(CoordinatorTest, RefusesANodeRankThatIsTakenAndNamesItsHolder) {
  make({2, 2}, true);
  join(0, 1);
  now_ += std::chrono::seconds(3);
  EXPECT_THAT(join(1, 1),
              AllOf(HasSubstr("node rank 1"), HasSubstr("h0 (pid 100)"), HasSubstr("3.0 seconds")));
  coordinator_->lost(0, "gone", true, now_);
  EXPECT_EQ(join(2, 1), "");
}

TEST_F(CoordinatorTest, NamesTheNodesThatDidNotComeInTime) {
  make({3, 3}, true);
  join(0, 0);
  join(1, 2);
  pass(59);
  EXPECT_FALSE(coordinator_->is_over());
  pass(1);
  EXPECT_TRUE(coordinator_->is_over());
  EXPECT_EQ(verdict(0).exit_code, static_cast<int>(ErrorKind::kTimeout));
  EXPECT_THAT(verdict(1).cause, AllOf(HasSubstr("waited 60.0 of 60.0 seconds"), HasSubstr("h0"),
                                      HasSubstr("h1"), HasSubstr("missing: node 1")));
  EXPECT_NE(join(2, 1), "") << "too late";
}

TEST_F(CoordinatorTest, NamesTheNodesThatDidNotComeAmongThousandsInAShortSentence) {
  make({2000, 2000}, true);
  for (int node = 0; node < 2000; ++node) {
    if (node != 1234) join(node, node, 8);
  }
  pass(60);
  EXPECT_THAT(verdict(7).cause, AllOf(HasSubstr("for 2000 nodes, but only 1999 joined"),
                                      HasSubstr("and 1989 more; missing: node 1234")));
  EXPECT_LT(verdict(7).cause.size(), 1000u);
  EXPECT_EQ(sent_, 1) << "the same to all";
}

TEST_F(CoordinatorTest, ForgetsNodesThatAreGoneBeforeTheStart) {
  make({1, 3}, false);
  join(0, 0, 2, true);
  join(1, 0);
  coordinator_->leave(1, SIGTERM, now_);
  join(2, 0);
  coordinator_->lost(2, "gone", true, now_);
  pass(5);
  EXPECT_EQ(placement(0).nodes, 1) << "neither of the two that are gone counts";
}

TEST_F(CoordinatorTest, StartsElasticNodesAfterTheLastCall) {
  make({2, 4}, false);
  join(0, 0, 2, true);
  pass(30);
  join(1, 0);
  pass(4.9);
  EXPECT_EQ(last(0), "");
  pass(0.1);
  EXPECT_EQ(placement(0).nodes, 2);
}

TEST_F(CoordinatorTest, PutsTheHostFirstWhenTheMostNodesAreThere) {
  make({1, 2}, false);
  join(0, 0);
  join(1, 0, 2, true);
  EXPECT_EQ(placement(1).node_rank, 0);
  EXPECT_EQ(placement(0).node_rank, 1);
}

TEST_F(CoordinatorTest, EndsWhenAllWorkersFinished) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(0, 0, 0);
  round_ended(0);
  EXPECT_EQ(last(0), "start") << "node 1 still works";
  ends(1, 1, 75);
  round_ended(1);
  EXPECT_EQ(verdict(0).exit_code, 75);
  EXPECT_EQ(verdict(1).exit_code, 75);
}

TEST_F(CoordinatorTest, TellsAllNodesTheFirstFailureOfAll) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(0, 0, 5);
  EXPECT_EQ(last(1), "stop");
  ends(1, 1, 3);
  round_ended(1);
  round_ended(0);
  EXPECT_EQ(verdict(0).culprit->rank, 1) << "rank 0 only lost its peer";
  EXPECT_EQ(verdict(1).exit_code, 3);
}

TEST_F(CoordinatorTest, RestartsAsOftenAsAllowed) {
  make({2, 2}, true, 1);
  join(0, 0, 1);
  join(1, 1, 1);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(last(0), "start");
    EXPECT_EQ(placement(0).restarts, round);
    EXPECT_EQ(placement(0).master_port, 1001 + round);
    ends(0, 0, 3);
    round_ended(0);
    ends(1, 1, 143, {SIGTERM});
    round_ended(1);
  }
  EXPECT_EQ(verdict(1).exit_code, 3);
}

TEST_F(CoordinatorTest, DoesNotRestartWhatWouldEndSoAgain) {
  make({2, 2}, true, 3);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(0, 0, 8);
  round_ended(0);
  ends(1, 1, 143, {SIGTERM});
  round_ended(1);
  EXPECT_EQ(last(1), "finish");
  EXPECT_EQ(verdict(1).exit_code, 8);
}

TEST_F(CoordinatorTest, TellsWhetherNodesStopForAFailure) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(0, 0, 3);
  EXPECT_EQ(last(1), "stop");
  EXPECT_TRUE(orders_[1].back().at("is_failure"));
  make({2, 2}, true);
  join(2, 0, 1);
  join(3, 1, 1);
  coordinator_->leave(2, SIGTERM, now_);
  ends(2, 0, 75, {SIGTERM});
  round_ended(2);
  EXPECT_EQ(last(3), "stop");
  EXPECT_FALSE(orders_[3].back().at("is_failure"));
}

TEST_F(CoordinatorTest, EndsTheRunWithALostNode) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(0, 0, 9);
  coordinator_->lost(1, "no heartbeat for 5.0 seconds", true, now_);
  round_ended(0);
  EXPECT_EQ(verdict(0).exit_code, static_cast<int>(ErrorKind::kPeerLost));
  EXPECT_THAT(verdict(0).cause, HasSubstr("lost node 1 (h1, pid 101): no heartbeat for 5.0 seconds"));
}

TEST_F(CoordinatorTest, WaitsForTheReplacementOfALostNode) {
  make({2, 2}, true, 1);
  join(0, 0, 1);
  join(1, 1, 1);
  coordinator_->lost(1, "gone", true, now_);
  EXPECT_EQ(last(0), "stop");
  ends(0, 0, 143, {SIGTERM});
  round_ended(0);
  EXPECT_EQ(last(0), "stop");
  join(2, 1, 1);
  EXPECT_EQ(placement(2).restarts, 1);
  EXPECT_EQ(last(0), "start");
}

TEST_F(CoordinatorTest, GoesOnWithFewerNodesOrASpareOne) {
  make({1, 2}, false, 1);
  join(0, 0, 1, true);
  join(1, 0, 1);
  join(2, 0, 1);
  EXPECT_EQ(last(2), "note") << "a spare";
  coordinator_->lost(1, "gone", true, now_);
  ends(0, 0, 143, {SIGTERM});
  round_ended(0);
  EXPECT_EQ(placement(2).nodes, 2);
  EXPECT_EQ(placement(2).node_rank, 1);
}

TEST_F(CoordinatorTest, TakesANewNodeInWithoutUsingARestart) {
  make({1, 3}, false, 0);
  join(0, 0, 1, true);
  pass(5);
  EXPECT_EQ(placement(0).nodes, 1);
  join(1, 0, 1);
  EXPECT_EQ(last(0), "stop");
  ends(0, 0, 143, {SIGTERM});
  round_ended(0);
  pass(5);
  EXPECT_EQ(placement(0).nodes, 2);
  EXPECT_EQ(placement(0).restarts, 0);
}

TEST_F(CoordinatorTest, GoesOnWithoutANodeThatLeaves) {
  make({1, 2}, false, 0);
  join(0, 0, 1, true);
  join(1, 0, 1);
  coordinator_->leave(1, SIGTERM, now_);
  ends(1, 1, 143, {SIGTERM});
  round_ended(1);
  ends(0, 0, 143, {SIGTERM});
  round_ended(0);
  EXPECT_EQ(verdict(1).exit_code, 143);
  pass(5);
  EXPECT_EQ(placement(0).nodes, 1);
}

TEST_F(CoordinatorTest, GoesOnWithoutANodeThatLeavesThoughItsPeersFailed) {
  make({1, 2}, false, 0);
  join(0, 0, 1, true);
  join(1, 0, 1);
  coordinator_->leave(1, SIGTERM, now_);
  ends(0, 0, 5);
  round_ended(0);
  ends(1, 1, 143, {SIGTERM});
  round_ended(1);
  EXPECT_EQ(verdict(1).exit_code, 143);
  pass(5);
  EXPECT_EQ(placement(0).nodes, 1);
}

TEST_F(CoordinatorTest, TakesEndsOfTheNodesOwnRanksOnce) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  ends(1, 0, 3);
  ends(1, -7, 3);
  ends(1, 2, 3);
  ends(1, 1, 4);
  ends(1, 1, 5);
  round_ended(1);
  ends(1, 1, 9);
  round_ended(1);
  ends(0, 0, 0);
  round_ended(0);
  EXPECT_EQ(verdict(0).culprit->rank, 1);
  EXPECT_EQ(verdict(0).exit_code, 4);
}

TEST_F(CoordinatorTest, SendsTheTableToAllBeforeTheEnd) {
  make({3, 3}, true);
  for (int id : {0, 1, 2}) join(id, id, 1);
  WorkerEnd waits{.status = {.exit_code = 6}};
  waits.standing = {.doing = "in barrier of start", .collective = "barrier of start"};
  coordinator_->round_ended(0, {waits}, now_);
  coordinator_->lost(1, "gone", true, now_);
  ends(2, 2, 5);
  round_ended(2);
  for (int id : {0, 2}) {
    const Message& table = orders_[id][orders_[id].size() - 2];
    EXPECT_EQ(table.at("type"), "table");
    EXPECT_THAT(table.at("text").get<std::string>(),
                AllOf(HasSubstr("rank 0 waits in barrier of start"), HasSubstr("node 1 (h1): no report")));
    EXPECT_EQ(last(id), "finish");
  }
}

TEST_F(CoordinatorTest, AnotherNodeTakesTheRanksOfALostOneAndItsReplica) {
  make({2, 2}, true, 1, 2);
  join(0, 0, 2, true);
  join(1, 1, 2);
  EXPECT_EQ(order_of(1).kind, WorkerOrder::OrderKind::kStart);
  EXPECT_EQ(order_of(1).ranks, (std::vector{2, 3}));
  for (int rank : {0, 1, 2, 3}) {
    coordinator_->worker_said(rank / 2, {.rank = rank, .incarnation = 1, .report = {.port = 7 + rank}}, now_);
  }
  EXPECT_EQ(epoch_from(*parse_message(order_of(1).line)).master_addr, "host0");
  EXPECT_EQ(epoch_from(*parse_message(order_of(1).line)).master_port, 7);
  coordinator_->lost(1, "gone", true, now_);
  EXPECT_EQ(parse_message(order_of(0).line)->at("type"), "break_off");
  EXPECT_EQ(join(2, 1, 1), "") << "too few workers: it waits";
  EXPECT_EQ(last(2), "note");
  coordinator_->lost(2, "gone", true, now_);
  EXPECT_EQ(join(3, 1, 2), "");
  EXPECT_EQ(orders_[3].at(0).at("type"), "start");
  EXPECT_EQ(placement_from(orders_[3].at(0).at("placement")).first_rank, 2);
  EXPECT_EQ(order_of(3).incarnation, 2);
}

TEST_F(CoordinatorTest, ANodeThatWasCutOffTakesItsOwnPlaceThoughItsLossWasNotNoticed) {
  make({2, 2}, true, 1, 2);
  join(0, 0, 2, true);
  join(1, 1, 2);
  EXPECT_NE(join(2, 1, 2), "") << "another one is refused";
  EXPECT_EQ(
      coordinator_->join(3, {.host = "h1", .pid = 101, .node_rank = 1, .workers = 2, .again = true}, now_),
      "");
  EXPECT_EQ(orders_[3].at(0).at("type"), "start");
  EXPECT_EQ(order_of(3).incarnation, 2);
}

TEST_F(CoordinatorTest, RefusesReplicasThatTheWorkersOfAllNodesDoNotFill) {
  make({2, 2}, true, 1, 2);
  join(0, 0, 2, true);
  join(1, 1, 1);
  EXPECT_EQ(last(0), "stop");
  round_ended(0);
  round_ended(1);
  EXPECT_EQ(verdict(0).exit_code, static_cast<int>(ErrorKind::kUsage));
  EXPECT_THAT(verdict(1).cause, HasSubstr("all nodes together have 3"));
}

TEST_F(CoordinatorTest, ReplicasThatWereLostBeforeTheStopDoNotCount) {
  make({1, 1}, true, 0, 1);
  join(0, 0, 2, true);
  for (int rank : {0, 1}) coordinator_->worker_said(0, {.rank = rank, .incarnation = 1, .report = {}}, now_);
  const auto end = [](int rank, int code, std::set<int> sent) {
    return WorkerEnd{
        .rank = rank, .status = {.exit_code = code}, .stop_signals_sent = sent, .incarnation = 1};
  };
  coordinator_->worker_ended(0, end(1, 3, {}), now_);
  coordinator_->leave(0, SIGTERM, now_);
  coordinator_->worker_ended(0, end(0, 75, {SIGTERM}), now_);
  coordinator_->round_ended(0, {end(0, 75, {SIGTERM}), end(1, 3, {})}, now_);
  EXPECT_EQ(verdict(0).exit_code, 75);
}

TEST_F(CoordinatorTest, EndsForAllWhenANodeIsToldToStopWhileTheyGather) {
  make({3, 3}, true);
  join(0, 0);
  join(1, 1);
  coordinator_->leave(0, SIGTERM, now_);
  for (int id : {0, 1}) {
    EXPECT_EQ(verdict(id).exit_code, 143);
    EXPECT_THAT(verdict(id).cause, HasSubstr("node 0 (h0, pid 100) was told to stop by SIGTERM"));
  }
}

TEST_F(CoordinatorTest, StopsTheOthersWhenANodeWasPreemptedAlone) {
  make({2, 2}, true);
  join(0, 0, 1);
  join(1, 1, 1);
  coordinator_->leave(1, SIGTERM, now_);
  ends(1, 1, 75, {SIGTERM});
  round_ended(1);
  EXPECT_EQ(last(0), "stop");
  ends(0, 0, 75, {SIGTERM});
  round_ended(0);
  EXPECT_EQ(verdict(0).exit_code, 75);
}

TEST_F(CoordinatorTest, EndsWhenAStaticNodeIsToldToStop) {
  make({2, 2}, true, 3);
  join(0, 0, 1);
  join(1, 1, 1);
  coordinator_->leave(1, SIGTERM, now_);
  ends(1, 1, 143, {SIGTERM});
  round_ended(1);
  EXPECT_EQ(last(0), "stop");
  ends(0, 0, 143, {SIGTERM});
  round_ended(0);
  EXPECT_EQ(verdict(0).exit_code, 143);
}

}  // namespace
}  // namespace fsdp::launch
