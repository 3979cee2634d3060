#include "run/train/time_left.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>

namespace fsdp::train {
namespace {

config::Config config_of(int64_t steps) {
  config::Config config;
  config.training.steps = steps;
  config.checkpoint.save_at_end = false;
  return config;
}

TEST(TimeLeft, IsUnknownBeforeTheFirstSteps) {
  TimeLeft left;
  left.set_schedule(config_of(100));
  EXPECT_EQ(left.seconds_after(0), std::nullopt);
}

TEST(TimeLeft, IsTheMeanTimeOfStepsThatFollowTheFirst) {
  TimeLeft left;
  left.set_schedule(config_of(100));
  left.add_steps(1, 20);
  EXPECT_DOUBLE_EQ(left.seconds_after(1).value(), 99 * 20);
  left.add_steps(1, 2);
  EXPECT_DOUBLE_EQ(left.seconds_after(2).value(), 98 * 2);
}

TEST(TimeLeft, FollowsStepsThatBecomeSlower) {
  TimeLeft left;
  left.set_schedule(config_of(2000));
  for (int step = 0; step < 500; ++step) left.add_steps(1, 1);
  for (int step = 0; step < 500; ++step) left.add_steps(1, 3);
  EXPECT_NEAR(left.seconds_after(1000).value(), 3000, 30);
}

TEST(TimeLeft, CountsThePausesThatAreStillDue) {
  config::Config config = config_of(25);
  config.data.validation = {"v.bin"};
  config.evaluation.interval_steps = 10;
  config.logging.sample_every = 5;
  config.checkpoint.interval_steps = 8;
  config.checkpoint.save_at_end = true;
  TimeLeft left;
  left.set_schedule(config);
  left.add_steps(10, 10);
  EXPECT_DOUBLE_EQ(left.seconds_after(10).value(), 15) << "no pause was seen";
  left.add_pause(Pause::kSave, 2);
  EXPECT_DOUBLE_EQ(left.seconds_after(10).value(), 15 + 3 * 2.0) << "after 16, 24 and 25";
  left.add_pause(Pause::kSample, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds_after(10).value(), 21 + 4 * 0.5) << "after 10, 15, 20 and 25";
  left.add_pause(Pause::kValidation, 100);
  EXPECT_DOUBLE_EQ(left.seconds_after(10).value(), 23 + 300) << "after 10, 20 and 25";
  EXPECT_DOUBLE_EQ(left.seconds_after(25).value(), 102.5) << "those after the last step are still to come";
}

TEST(TimeLeft, CountsSavesThatGoByTime) {
  config::Config config = config_of(100);
  config.checkpoint.interval_minutes = 0.5;
  config.checkpoint.interval_steps = 1;
  TimeLeft left;
  left.set_schedule(config);
  left.add_steps(1, 2);
  EXPECT_DOUBLE_EQ(left.seconds_after(0).value(), 200);
  left.add_pause(Pause::kSave, 3);
  EXPECT_DOUBLE_EQ(left.seconds_after(0).value(), 200 + 6 * 3.0) << "one in 30 seconds, not in each step";
  left.set_save_interval(50);
  EXPECT_DOUBLE_EQ(left.seconds_after(0).value(), 200 + 4 * 3.0);
}

/// A run on a made clock, with noise, a slow first step and a slow first validation.
struct SimulatedRun {
  struct Estimate {
    double now = 0, left = 0, left_by_steps = 0;  ///< the latter without pauses
  };

  /// `saves_best`: every third validation is followed by a save of the best state.
  explicit SimulatedRun(const config::Config& config, bool saves_best = false) {
    std::mt19937 random(1);
    std::normal_distribution<double> noise(1, 0.1);
    TimeLeft time_left;
    time_left.set_schedule(config);
    const int64_t steps = config.training.steps;
    const auto is_due = [](int64_t interval, int64_t step) { return interval > 0 && step % interval == 0; };
    double seconds_of_line = 0;
    int64_t steps_of_line = 0, validations = 0;
    const auto pause = [&](Pause kind, double seconds, bool was_due = true) {
      seconds *= noise(random);
      end += seconds;
      time_left.add_pause(kind, seconds, was_due);
    };
    for (int64_t step = 1; step <= steps; ++step) {
      const double seconds = (step == 1 ? 12 : 0.8) * noise(random);
      end += seconds, seconds_of_line += seconds, ++steps_of_line;
      if (is_due(config.logging.interval_steps, step)) {
        time_left.add_steps(steps_of_line, seconds_of_line);
        const double by_steps =
            static_cast<double>(steps - step) * seconds_of_line / static_cast<double>(steps_of_line);
        estimates[step] = {end, time_left.seconds_after(step).value(), by_steps};
        seconds_of_line = 0, steps_of_line = 0;
      }
      bool is_best = false;
      if (is_due(config.evaluation.interval_steps, step) || step == steps) {
        pause(Pause::kValidation, validations++ == 0 ? 14 : 10);
        is_best = saves_best && validations % 3 == 0;
      }
      if (is_due(config.logging.sample_every, step)) pause(Pause::kSample, 1.5);
      const bool saves = is_due(config.checkpoint.interval_steps, step);
      if (saves || is_best) pause(Pause::kSave, 6, saves);
    }
    if (config.checkpoint.save_at_end && steps % config.checkpoint.interval_steps != 0)
      pause(Pause::kSave, 6);
  }

  /// The largest error from half of the steps to nine tenths, as a share of the time that was left.
  double worst_error(double Estimate::*left) const {
    const int64_t steps = estimates.rbegin()->first;
    double worst = 0;
    for (const auto& [step, estimate] : estimates) {
      if (step < steps / 2 || step > steps * 9 / 10) continue;
      const double truth = end - estimate.now;
      worst = std::max(worst, std::abs(estimate.*left - truth) / truth);
    }
    return worst;
  }

  double end = 0;
  std::map<int64_t, Estimate> estimates;
};

TEST(TimeLeft, IsWithinATenthFromHalfOfARunWithPauses) {
  config::Config config = config_of(600);
  config.data.validation = {"v.bin"};
  config.evaluation.interval_steps = 25;
  config.logging.sample_every = 50;
  config.checkpoint.interval_steps = 40;
  for (const int64_t interval : {1, 10}) {
    config.logging.interval_steps = interval;
    const SimulatedRun run(config);
    EXPECT_LT(run.worst_error(&SimulatedRun::Estimate::left), 0.1) << interval;
    EXPECT_GT(run.worst_error(&SimulatedRun::Estimate::left_by_steps), 0.3) << "the pauses matter";
  }
  config.checkpoint.save_at_end = true;
  const SimulatedRun run(config, /*saves_best=*/true);
  EXPECT_LT(run.worst_error(&SimulatedRun::Estimate::left), 0.15)
      << "nobody knows which state will be the best";
}

}  // namespace
}  // namespace fsdp::train
