#include "tools/simulate/shared_resources.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::simulate {
namespace {

/// When the activity ends, counted from now.
double until(SharedResources& resources, SharedResources::ActivityNumber activity) {
  double seconds = 0;
  while (!resources.is_done(activity)) {
    const double next = resources.until_next();
    resources.pass(next);
    seconds += next;
  }
  return seconds;
}

TEST(SharedResources, LetWhatIsAloneTakeItsTime) {
  SharedResources resources;
  const auto link = resources.add();
  EXPECT_TRUE(std::isinf(resources.until_next()));
  EXPECT_TRUE(resources.is_done(0));
  EXPECT_TRUE(resources.is_done(resources.start(0, {{link, 1}})));
  EXPECT_DOUBLE_EQ(until(resources, resources.start(3, {{link, 1}})), 3);
  EXPECT_DOUBLE_EQ(until(resources, resources.start(3, {})), 3);
}

TEST(SharedResources, MakeTwoOnOneLinkTakeTwiceAsLong) {
  SharedResources resources;
  const auto link = resources.add(), other = resources.add();
  const auto first = resources.start(2, {{link, 1}}), second = resources.start(3, {{link, 1}}),
             elsewhere = resources.start(1, {{other, 1}});
  EXPECT_DOUBLE_EQ(until(resources, elsewhere), 1);
  EXPECT_DOUBLE_EQ(until(resources, first), 3) << "4 in all";
  EXPECT_DOUBLE_EQ(until(resources, second), 1) << "alone again for the last second of its 3";
}

TEST(SharedResources, DoNotHoldUpWhatNeedsLittle) {
  SharedResources resources;
  const auto cores = resources.add(), link = resources.add();
  const auto transfer = resources.start(1, {{link, 1}, {cores, 0.1}}),
             compute = resources.start(1, {{cores, 1}});
  EXPECT_DOUBLE_EQ(until(resources, transfer), 1);
  EXPECT_NEAR(until(resources, compute), 0.1, 1e-12);
}

TEST(SharedResources, AreDividedByWeight) {
  SharedResources resources;
  const auto cores = resources.add();
  const auto threads = resources.start(3, {{cores, 1}}, 3), copy = resources.start(1, {{cores, 1}}, 1);
  EXPECT_DOUBLE_EQ(until(resources, threads), 4);
  EXPECT_TRUE(resources.is_done(copy)) << "a quarter of the cores for 4 seconds";
}

}  // namespace
}  // namespace fsdp::simulate
