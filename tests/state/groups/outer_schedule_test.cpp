#include "state/groups/outer_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdp::optim {
namespace {

std::vector<int64_t> steps_where(const auto& holds) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step <= 24; ++step) {
    if (holds(step)) steps.push_back(step);
  }
  return steps;
}

TEST(OuterSchedule, ExchangesTheWholeModelAfterTheLocalSteps) {
  const OuterSchedule schedule{.local_steps = 8};
  EXPECT_EQ(steps_where([&](int64_t step) { return schedule.begins(step, 0); }),
            (std::vector<int64_t>{8, 16, 24}));
  EXPECT_EQ(steps_where([&](int64_t step) { return schedule.ends(step, 0); }),
            (std::vector<int64_t>{8, 16, 24}));
  EXPECT_TRUE(steps_where([&](int64_t step) { return schedule.is_under_way(step, 0); }).empty());
}

TEST(OuterSchedule, SharesFragmentsOutOverTheLocalSteps) {
  const OuterSchedule schedule{.local_steps = 8, .fragments = 3, .delay = 2};
  const std::vector<std::vector<int64_t>> begins = {{2, 10, 18}, {5, 13, 21}, {8, 16, 24}};
  for (int64_t fragment = 0; fragment < 3; ++fragment) {
    const auto& expected = begins[static_cast<size_t>(fragment)];
    EXPECT_EQ(steps_where([&](int64_t step) { return schedule.begins(step, fragment); }), expected);
    std::vector<int64_t> ends, under_way;
    for (const int64_t step : expected) {
      if (step + 2 <= 24) ends.push_back(step + 2);
      for (const int64_t beside : {step, step + 1}) {
        if (beside <= 24) under_way.push_back(beside);
      }
    }
    EXPECT_EQ(steps_where([&](int64_t step) { return schedule.ends(step, fragment); }), ends);
    EXPECT_EQ(steps_where([&](int64_t step) { return schedule.is_under_way(step, fragment); }), under_way);
  }
  EXPECT_EQ(steps_where([&](int64_t step) { return schedule.begins_any(step); }),
            (std::vector<int64_t>{2, 5, 8, 10, 13, 16, 18, 21, 24}));
}

}  // namespace
}  // namespace fsdp::optim
