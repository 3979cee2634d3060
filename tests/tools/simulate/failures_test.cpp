#include "tools/simulate/failures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fsdp::simulate {
namespace {

constexpr double kHour = 3600;

/// The share of so many drawn times between faults.
double drawn_share(const Faults& faults, double interval) {
  std::mt19937_64 source(1);
  std::exponential_distribution<double> gap(1 / faults.mean_seconds);
  double elapsed = 0, useful = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double seconds = gap(source), running = std::max(0.0, seconds - faults.restart_seconds);
    elapsed += seconds;
    useful += interval * std::floor(running / (interval + faults.checkpoint_seconds));
  }
  return useful / elapsed;
}

TEST(Faults, CostNothingButSavesWhereThereAreHardlyAny) {
  const Faults rare{.mean_seconds = 1e12, .checkpoint_seconds = 30, .restart_seconds = 600};
  EXPECT_NEAR(effective_share(rare, 270), 0.9, 1e-6);
}

TEST(Faults, LeaveNothingWhereTheyComeFasterThanRestarts) {
  const Faults constant{.mean_seconds = 10, .checkpoint_seconds = 30, .restart_seconds = 600};
  EXPECT_LT(effective_share(constant, 270), 1e-9);
}

TEST(Faults, CostWhatDrawnOnesDo) {
  const Faults faults{.mean_seconds = 4 * kHour, .checkpoint_seconds = 60, .restart_seconds = 300};
  for (const double interval : {300.0, 1200.0, 4800.0}) {
    EXPECT_NEAR(effective_share(faults, interval), drawn_share(faults, interval), 0.01) << interval;
  }
}

TEST(BestInterval, IsBetterThanItsNeighboursInWholeSteps) {
  for (const double checkpoint : {1.0, 45.0, 7200.0}) {
    const Faults faults{.mean_seconds = 6 * kHour, .checkpoint_seconds = checkpoint, .restart_seconds = 300};
    const double best = best_interval(faults, 5);
    EXPECT_NEAR(std::remainder(best, 5), 0, 1e-6);
    EXPECT_GE(effective_share(faults, best), effective_share(faults, 1.05 * best)) << best;
    EXPECT_GE(effective_share(faults, best), effective_share(faults, 0.95 * best)) << best;
  }
}

TEST(BestInterval, IsNearYoungsFormulaWhereSavesAreShort) {
  const Faults faults{.mean_seconds = 6 * kHour, .checkpoint_seconds = 1, .restart_seconds = 300};
  EXPECT_NEAR(best_interval(faults, 0.1) / std::sqrt(2 * 1 * 6 * kHour), 1, 0.02);
}

TEST(BestInterval, IsAtLeastAStep) {
  EXPECT_EQ(best_interval({.mean_seconds = 100, .checkpoint_seconds = 1}, 50), 50);
}

TEST(Stragglers, MakeAStepAsSlowAsTheSlowestHost) {
  const auto step = [](double slowness) { return slowness; };
  EXPECT_NEAR(mean_step_seconds({}, 100, step), 1, 1e-12);
  EXPECT_NEAR(mean_step_seconds({.slow_share = 1, .slow_factor = 2}, 4, step), 2, 1e-12);
  // One of a hundred hosts is slow with probability 1 - 0.99^100.
  EXPECT_NEAR(mean_step_seconds({.slow_share = 0.01, .slow_factor = 2}, 100, step),
              1 + (1 - std::pow(0.99, 100)), 0.01);
  const Stragglers varied{.sigma = 0.05};
  const double few = mean_step_seconds(varied, 8, step), many = mean_step_seconds(varied, 1024, step);
  EXPECT_GT(few, 1.03);
  EXPECT_GT(many, few);
  EXPECT_NEAR(many, std::exp(0.05 * 3.24), 0.02) << "the largest of 1024 is 3.24 deviations above the mean";
}

}  // namespace
}  // namespace fsdp::simulate
