#include "util/block_choice.h"

#include <gtest/gtest.h>

namespace fsdp::util {
namespace {

TEST(BlockChoice, TakesTheSmallestBlockThatIsAnEighthLargerAtMost) {
  EXPECT_EQ(choose_block({200, 112, 104, 99}, 100, 0, 1000).reuse, 2);
  EXPECT_FALSE(choose_block({113, 99}, 100, 212, 1000).reuse);
}

TEST(BlockChoice, GivesUpWhatHasWaitedLongestWhenANewBlockWouldBeTooMuch) {
  const BlockChoice choice = choose_block({10, 20, 30}, 100, 160, 200);
  EXPECT_FALSE(choice.reuse);
  EXPECT_EQ(choice.give_up, 3);
  EXPECT_EQ(choose_block({10, 20, 30}, 100, 160, 235).give_up, 2);
  EXPECT_EQ(choose_block({10, 20, 30}, 100, 100, 200).give_up, 0);
}

TEST(BlockChoice, TakesALargerBlockRatherThanGivingOneUp) {
  EXPECT_EQ(choose_block({10, 400, 250}, 100, 700, 750, 3).reuse, 2);
  EXPECT_FALSE(choose_block({10, 400, 250}, 100, 700, 800, 3).reuse) << "there is room";
  EXPECT_FALSE(choose_block({10, 400, 301}, 100, 700, 750, 3).reuse) << "too large";
}

}  // namespace
}  // namespace fsdp::util
