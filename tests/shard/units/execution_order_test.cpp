#include "shard/units/execution_order.h"

#include <gtest/gtest.h>

namespace fsdp::shard {
namespace {

using Units = std::vector<size_t>;

Units next(const ExecutionOrder& order, size_t most) {
  const auto units = order.next(most);
  return {units.begin(), units.end()};
}

void run_pass(ExecutionOrder& order, const Units& units) {
  order.begin_pass();
  for (size_t unit : units) {
    order.begin(unit);
    order.end(unit);
  }
  order.end_pass();
}

Units likely(ExecutionOrder& order, size_t most) {
  const auto units = order.likely_next(most);
  return {units.begin(), units.end()};
}

TEST(ExecutionOrder, TellsNothingInTheFirstPass) {
  ExecutionOrder order(4);
  order.begin_pass();
  order.begin(0);
  EXPECT_FALSE(order.knows());
  EXPECT_EQ(next(order, 5), Units{});
  EXPECT_EQ(order.expected(), std::nullopt);
}

TEST(ExecutionOrder, TellsWhatFollowedInTheLastPass) {
  ExecutionOrder order(4);
  run_pass(order, {0, 1, 2, 2, 3});
  order.begin_pass();
  order.begin(0);
  EXPECT_EQ(next(order, 1), Units{1});
  EXPECT_EQ(next(order, 100), (Units{1, 2, 2, 3}));
  order.begin(1);
  order.begin(2);
  EXPECT_EQ(next(order, 1), Units{2});  // a unit may be used twice
  order.begin(2);
  order.begin(3);
  EXPECT_EQ(next(order, 1), Units{});
  EXPECT_TRUE(order.follows_last_pass());
}

TEST(ExecutionOrder, TellsNothingMoreInAPassThatGoesItsOwnWay) {
  ExecutionOrder order(4);
  run_pass(order, {0, 1, 2, 3});
  order.begin_pass();
  order.begin(0);
  order.begin(2);
  EXPECT_FALSE(order.follows_last_pass());
  EXPECT_EQ(next(order, 1), Units{});
  order.begin(2);  // by chance where it was in the last pass
  EXPECT_EQ(next(order, 1), Units{});
  order.end_pass();
  order.begin_pass();
  EXPECT_EQ(order.expected(), 0u);
}

TEST(ExecutionOrder, IsLikelyThatOfTheModuleTreeAtFirst) {
  ExecutionOrder order(6, /*roots=*/2);
  order.begin_pass();
  order.begin(0);
  EXPECT_EQ(likely(order, 1), Units{2});
  EXPECT_EQ(likely(order, 100), (Units{2, 3, 4, 5}));
  order.begin(3);
  EXPECT_EQ(likely(order, 1), Units{}) << "2 was likely";
  order.begin(4);
  EXPECT_EQ(likely(order, 1), Units{5});
  order.begin(5);
  EXPECT_EQ(likely(order, 1), Units{});
}

TEST(ExecutionOrder, IsLikelyThatOfTheLastPassWhileThisOneAgrees) {
  ExecutionOrder order(4);
  run_pass(order, {0, 3, 1, 3, 2});
  order.begin_pass();
  order.begin(0);
  EXPECT_EQ(likely(order, 100), (Units{3, 1, 3, 2}));
  order.begin(3);
  EXPECT_EQ(likely(order, 1), Units{1});
  order.begin(1);
  order.begin(3);
  EXPECT_EQ(likely(order, 1), Units{2});
}

TEST(ExecutionOrder, IsLikelyWhatFollowedEachUnitLastWhereAPassGoesItsOwnWay) {
  ExecutionOrder order(5);
  run_pass(order, {0, 3, 1, 4, 2});
  order.begin_pass();
  order.begin(0);
  order.begin(1);  // where 3 was
  EXPECT_EQ(likely(order, 1), Units{});
  order.begin(4);
  EXPECT_EQ(likely(order, 1), Units{2});
  order.begin(2);
  EXPECT_EQ(likely(order, 1), Units{}) << "2 was the last one";
}

TEST(ExecutionOrder, IsLikelyInACircleWithoutEnd) {
  ExecutionOrder order(3);
  run_pass(order, {0, 2, 1});
  order.begin_pass();
  for (size_t unit : {0u, 1u, 2u, 1u}) order.begin(unit);
  EXPECT_EQ(likely(order, 100), (Units{2, 1, 2}));
  EXPECT_EQ(likely(order, 1), Units{2});
}

TEST(ExecutionOrder, ForgetsAllPasses) {
  ExecutionOrder order(4);
  run_pass(order, {0, 3, 2, 1});
  order.forget();
  order.begin_pass();
  order.begin(0);
  EXPECT_FALSE(order.follows_last_pass());
  EXPECT_EQ(likely(order, 100), (Units{1, 2, 3}));
}

TEST(ExecutionOrder, BackwardGoesBackByTheEndsOfForward) {
  ExecutionOrder order(8);
  order.begin_pass();
  for (size_t unit : {0u, 1u, 2u}) order.begin(unit);  // 2 lies inside 1, 1 inside 0
  for (size_t unit : {2u, 1u, 0u}) order.end(unit);
  EXPECT_EQ(order.next_in_backward(0), 1u);
  EXPECT_EQ(order.next_in_backward(1), 2u);
  EXPECT_EQ(order.next_in_backward(2), std::nullopt);
  EXPECT_EQ(order.next_in_backward(7), std::nullopt);
}

TEST(ExecutionOrder, BackwardDoesNotGoBackToWhatHasBegun) {
  ExecutionOrder order(4);
  order.begin_pass();
  for (size_t unit : {0u, 1u, 2u, 3u, 2u}) order.begin(unit);  // 3 lies inside the second use of 2
  for (size_t unit : {1u, 2u, 3u, 2u, 0u}) order.end(unit);
  order.begin_backward_pass();
  for (size_t unit : {0u, 2u, 3u}) order.begin_in_backward(unit);
  EXPECT_EQ(order.next_in_backward(3), 2u);  // its first use
  order.begin_in_backward(2);
  EXPECT_EQ(order.next_in_backward(2), 1u);
  order.begin_in_backward(1);
  EXPECT_EQ(order.next_in_backward(2), std::nullopt);
  order.begin_backward_pass();
  EXPECT_EQ(order.next_in_backward(0), 2u);
}

}  // namespace
}  // namespace fsdp::shard
