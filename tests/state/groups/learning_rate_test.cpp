#include "state/groups/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/util/error.h"

namespace fsdp::optim {
namespace {

OptimizerOptions with_rate(double lr) {
  OptimizerOptions options;
  options.lr = lr;
  return options;
}

/// The share of the rate at each step 1 to total.
std::vector<double> shares(const ScheduleOptions& schedule, int64_t total) {
  std::vector<double> result;
  for (int64_t step = 1; step <= total; ++step) result.push_back(lr_at(with_rate(1), schedule, step, total));
  return result;
}

ScheduleOptions schedule_named(const std::string& name, int64_t warmup_steps = 0, double min_lr_ratio = 0) {
  ScheduleOptions schedule;
  schedule.name = name;
  schedule.warmup_steps = warmup_steps;
  schedule.min_lr_ratio = min_lr_ratio;
  return schedule;
}

void expect_shares(const ScheduleOptions& schedule, const std::vector<double>& expected) {
  std::vector<double> found = shares(schedule, static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-15) << schedule.name << ", step " << i + 1;
  }
}

TEST(Schedule, FollowsTheDocumentedFormulas) {
  expect_shares(schedule_named("constant", 2), {0.5, 1, 1, 1, 1});
  expect_shares(schedule_named("linear"), {1, 0.75, 0.5, 0.25, 0});
  expect_shares(schedule_named("linear", 2, 0.1), {0.5, 1, 0.7, 0.4, 0.1});
  expect_shares(schedule_named("cosine", 0, 0.2),
                {1, 0.2 + 0.8 * (2 + std::sqrt(2)) / 4, 0.6, 0.2 + 0.8 * (2 - std::sqrt(2)) / 4, 0.2});
  expect_shares(
      schedule_named("inverse_sqrt", 4, 0.7),
      {0.25, 0.5, 0.75, 1, std::sqrt(0.8), std::sqrt(4.0 / 6), std::sqrt(4.0 / 7), std::sqrt(0.5), 0.7});
  ScheduleOptions polynomial = schedule_named("polynomial", 0, 0.5);
  polynomial.power = 2;
  expect_shares(polynomial, {1, 0.5 + 0.5 * 0.5625, 0.625, 0.5 + 0.5 * 0.0625, 0.5});
  ScheduleOptions wsd = schedule_named("wsd", 2);
  wsd.decay_steps = 4;
  expect_shares(wsd, {0.5, 1, 1, 1, 0.75, 0.5, 0.25, 0});
  ScheduleOptions tri_stage = schedule_named("tri_stage", 2, 0.01);
  tri_stage.hold_steps = 2;
  tri_stage.decay_steps = 4;
  const double root = std::sqrt(0.1);
  expect_shares(tri_stage, {0.5, 1, 1, 1, root, 0.1, 0.1 * root, 0.01, 0.01, 0.01});
  tri_stage.decay_steps = 0;
  expect_shares(tri_stage, {0.5, 1, 1, 1, 0.1, 0.01});
  expect_shares(schedule_named("wsd"), {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5, 0});
}

TEST(Schedule, ScalesWithTheRate) {
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_DOUBLE_EQ(lr_at(with_rate(3e-4), schedule_named("cosine", 3), step, 10),
                     3e-4 * lr_at(with_rate(1), schedule_named("cosine", 3), step, 10));
  }
}

// Properties of every schedule, for all lengths of the run, the warm-up and the decay up to a limit.
TEST(Schedule, RisesToTheWholeRateAndNeverAgain) {
  for (const std::string& name : schedule_names()) {
    for (double floor : {0.0, 0.1, 1.0}) {
      if (name == "tri_stage" && floor == 0) continue;  // refused
      for (int64_t total = 1; total <= 24; ++total) {
        for (int64_t warmup = 0; warmup <= total + 2; ++warmup) {
          for (int64_t decay = 0; decay <= total + 2; decay += 3) {
            ScheduleOptions schedule = schedule_named(name, warmup, floor);
            schedule.decay_steps = decay;
            std::vector<double> rate = shares(schedule, total);
            const int64_t fits = std::min(warmup, total);
            int64_t peak = std::max<int64_t>(fits, 1);
            for (int64_t step = 1; step <= total; ++step) {
              double now = rate[static_cast<size_t>(step - 1)];
              if (step <= peak) {
                EXPECT_DOUBLE_EQ(now,
                                 fits == 0 ? 1.0 : static_cast<double>(step) / static_cast<double>(fits));
              } else {
                EXPECT_LE(now, rate[static_cast<size_t>(step - 2)] + 1e-15) << name << " rises at " << step;
                EXPECT_GE(now, floor - 1e-15) << name << " is under the floor at " << step;
              }
            }
            bool falls_to_floor = name != "constant" && name != "inverse_sqrt" && total > peak;
            if (falls_to_floor) {
              EXPECT_DOUBLE_EQ(rate.back(), floor) << name;
            }
          }
        }
      }
    }
  }
}

// No jump where the warm-up ends: on long runs neighbouring steps differ by little.
TEST(Schedule, IsContinuousAtTheEndOfTheWarmUp) {
  for (const std::string& name : schedule_names()) {
    ScheduleOptions schedule = schedule_named(name, 10'000, name == "tri_stage" ? 0.1 : 0);
    std::vector<double> rate = shares(schedule, 100'000);
    for (size_t i = 1; i < rate.size(); ++i)
      ASSERT_NEAR(rate[i], rate[i - 1], 1.1e-4) << name << " at " << i + 1;
  }
}

TEST(Schedule, KeepsTheLastShareAfterTheEnd) {
  EXPECT_EQ(lr_at(with_rate(1), schedule_named("cosine", 0, 0.25), 1000, 10), 0.25);
  EXPECT_EQ(lr_at(with_rate(1), schedule_named("linear", 20), 1000, 10), 1);
}

// As in Hugging Face's TrainingArguments.
TEST(Schedule, TakesTheWarmUpAsAShareOfAllSteps) {
  ScheduleOptions schedule = schedule_named("linear");
  schedule.warmup_ratio = 0.07;
  EXPECT_EQ(warmup_steps_of(schedule, 100), 7) << "not 8 for 0.07 * 100 = 7.000000000000001";
  EXPECT_EQ(warmup_steps_of(schedule, 101), 8);
  EXPECT_EQ(warmup_steps_of(schedule, 1), 1);
  ScheduleOptions steps = schedule_named("linear", 8);
  for (int64_t step = 1; step <= 101; ++step) {
    EXPECT_EQ(lr_at(with_rate(1), schedule, step, 101), lr_at(with_rate(1), steps, step, 101));
  }
  schedule.warmup_ratio = 1;
  EXPECT_THROW(check_schedule(schedule), util::Error);
}

TEST(Schedule, IsCutToARunThatIsTooShortForIt) {
  EXPECT_EQ(cut_of_schedule(schedule_named("cosine", 5), 5), "");
  EXPECT_EQ(cut_of_schedule(schedule_named("cosine", 700), 5),
            "the run has only 5 steps, so lr_scheduler.warmup_steps is cut from 700 to 5; a "
            "longer run has the whole schedule");
  ScheduleOptions stages = schedule_named("tri_stage", 2, 0.1);
  stages.hold_steps = 2;
  stages.decay_steps = 9;
  EXPECT_NE(cut_of_schedule(stages, 5).find("decay_steps is cut from 9 to 1"), std::string::npos);
  EXPECT_EQ(shares(schedule_named("cosine", 700), 4), (std::vector<double>{0.25, 0.5, 0.75, 1}));
}

void expect_schedule_refused(const ScheduleOptions& schedule, const std::string& part) {
  try {
    check_schedule(schedule);
    ADD_FAILURE() << "not refused: " << part;
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Schedule, RefusesWhatItDoesNotKnow) {
  expect_schedule_refused(schedule_named("cosin"), "did you mean \"cosine\"?");
  expect_schedule_refused(schedule_named("x", 0), "inverse_sqrt");
  expect_schedule_refused(schedule_named("linear", -1), "warmup_steps = -1");
  expect_schedule_refused(schedule_named("linear", 0, 1.5), "min_lr_ratio = 1.5");
  expect_schedule_refused(schedule_named("linear", 0, std::nan("")), "min_lr_ratio");
  ScheduleOptions schedule = schedule_named("polynomial");
  schedule.power = 0;
  expect_schedule_refused(schedule, "power = 0");
  expect_schedule_refused(schedule_named("tri_stage"), "min_lr_ratio = 0 must be above 0");
  schedule = schedule_named("tri_stage", 0, 0.1);
  schedule.hold_steps = -1;
  expect_schedule_refused(schedule, "hold_steps = -1");
  schedule = schedule_named("wsd");
  schedule.decay_steps = -5;
  expect_schedule_refused(schedule, "decay_steps = -5");
  EXPECT_THROW(lr_at(with_rate(1), schedule_named("constant"), 0, 10), util::Error);
}

}  // namespace
}  // namespace fsdp::optim
