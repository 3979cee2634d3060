#include "run/train/slow_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

using ::testing::HasSubstr;

/// Compares the ranks of some steps, one step at a time unless told otherwise.
class SlowRanksTest : public ::testing::Test {
 protected:
  std::vector<SlowRanks::Message> add(const std::vector<double>& paces, int64_t steps = 1) {
    step_ += steps;
    return ranks_.add(step_, steps, paces);
  }
  std::vector<SlowRanks::Message> add_each(int64_t count, const std::vector<double>& paces) {
    std::vector<SlowRanks::Message> all;
    for (int64_t i = 0; i < count; ++i) {
      for (const auto& message : add(paces)) all.push_back(message);
    }
    return all;
  }

  SlowRanks ranks_{{.factor = 1.5, .steps = 4}, {"node-a", "node-a", "node-b"}};
  int64_t step_ = 0;
};

TEST_F(SlowRanksTest, ARankIsNamedOnceItHasBeenSlowForSoManySteps) {
  EXPECT_TRUE(add({1, 1, 1}).empty());
  EXPECT_TRUE(add_each(3, {1, 1, 2}).empty());
  EXPECT_FALSE(ranks_.slowest_named());
  const auto messages = add({1, 1, 4});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].warns);
  EXPECT_THAT(messages[0].text,
              HasSubstr("rank 2 on node-b is slow: since step 2 it has needed 2.50 times the time"));
  ASSERT_TRUE(ranks_.slowest_named());
  EXPECT_EQ(ranks_.slowest_named()->rank, 2);
  EXPECT_EQ(ranks_.slowest_named()->host, "node-b");
  EXPECT_EQ(ranks_.slowest_named()->factor, 4);
  EXPECT_TRUE(add_each(20, {1, 1, 4}).empty()) << "it is said once";
}

TEST_F(SlowRanksTest, TheCountBeginsAnewAfterAStepThatIsNotSlow) {
  EXPECT_TRUE(add_each(3, {1, 2, 1}).empty());
  EXPECT_TRUE(add({1, 1.4, 1}).empty());
  EXPECT_TRUE(add_each(3, {1, 2, 1}).empty());
  EXPECT_EQ(add({1, 2, 1}).size(), 1u);
}

TEST_F(SlowRanksTest, TheFactorItselfIsSlowAndLessIsNot) {
  EXPECT_TRUE(add_each(20, {1, 1.49, 1}).empty());
  EXPECT_EQ(add_each(4, {1, 1.5, 1}).size(), 1u);
}

TEST_F(SlowRanksTest, ALineOfManyStepsCountsAsMany) {
  EXPECT_TRUE(add({3, 1, 1}, 3).empty());
  const auto messages = add({2, 1, 1}, 1);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].text, HasSubstr("rank 0 on node-a is slow: since step 1 it has needed 2.75 times"));
}

TEST_F(SlowRanksTest, ItsRecoveryIsSaidOnceAfterAsManySteps) {
  add_each(4, {1, 1, 3});
  EXPECT_TRUE(add_each(3, {1, 1, 1}).empty());
  EXPECT_TRUE(add({1, 1, 3}).empty()) << "slow again before it had recovered";
  EXPECT_TRUE(ranks_.slowest_named());
  EXPECT_TRUE(add_each(3, {1, 1, 1}).empty());
  const auto messages = add({1, 1, 1});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_FALSE(messages[0].warns);
  EXPECT_THAT(messages[0].text,
              HasSubstr("rank 2 on node-b is no longer slow: since step 9 it has needed 1.00 times"));
  EXPECT_FALSE(ranks_.slowest_named());
  EXPECT_TRUE(add_each(20, {1, 1, 1}).empty());
  EXPECT_EQ(add_each(4, {1, 1, 3}).size(), 1u) << "and it can become slow again";
}

TEST_F(SlowRanksTest, AnEvenRunNamesNobody) {
  for (int step = 0; step < 100; ++step) {
    std::vector<double> paces(3, 1e-12);
    paces[static_cast<size_t>(step % 3)] *= 1.2;
    EXPECT_TRUE(add(paces).empty());
  }
}

TEST_F(SlowRanksTest, TheSlowestIsKnownWhetherOrNotItIsNamed) {
  add({1, 1.1, 0.9});
  EXPECT_EQ(ranks_.slowest().rank, 1);
  EXPECT_EQ(ranks_.slowest().host, "node-a");
  EXPECT_NEAR(ranks_.slowest().factor, 1.1 / 0.95, 1e-12);
  add({0.5, 0.5, 1});
  EXPECT_EQ(ranks_.slowest().rank, 2);
  EXPECT_EQ(ranks_.slowest().factor, 2);
}

TEST(SlowRanks, OfTwoRanksTheSlowOneIsNamed) {
  SlowRanks ranks({.factor = 1.5, .steps = 1}, {"a", "b"});
  const auto messages = ranks.add(1, 1, {1.6, 1});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].text, HasSubstr("rank 0 on a is slow"));
}

TEST(SlowRanks, AHostOfSlowRanksIsNamedRankByRank) {
  SlowRanks ranks({.factor = 1.5, .steps = 1}, {"a", "a", "a", "b", "b"});
  const auto messages = ranks.add(1, 1, {1, 1, 1, 2, 2});
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0].text, HasSubstr("rank 3 on b is slow"));
  EXPECT_THAT(messages[1].text, HasSubstr("rank 4 on b is slow"));
  ranks.add(2, 1, {1, 1, 1, 2, 3});
  EXPECT_EQ(ranks.slowest_named()->rank, 4);
}

}  // namespace
}  // namespace fsdp::train
