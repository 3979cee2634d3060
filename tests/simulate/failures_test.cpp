#include "simulate/failures.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::simulate {
namespace {

constexpr double kHour = 3600;

TEST(Faults, CostNothingButSavesWhereThereAreHardlyAny) {
  const Faults rare{.mean_seconds = 1e12, .checkpoint_seconds = 30, .restart_seconds = 600};
  EXPECT_NEAR(expected_effective_share(rare, 270), 0.9, 1e-6);
  EXPECT_NEAR(effective_share(rare, 270), 0.9, 1e-6);
}

TEST(Faults, LeaveNothingWhereTheyComeFasterThanRestarts) {
  const Faults constant{.mean_seconds = 10, .checkpoint_seconds = 30, .restart_seconds = 600};
  EXPECT_LT(expected_effective_share(constant, 270), 1e-9);
  EXPECT_LT(effective_share(constant, 270), 1e-9);
}

TEST(Faults, DrawnAgreeWithTheirExpectation) {
  const Faults faults{.mean_seconds = 4 * kHour, .checkpoint_seconds = 60, .restart_seconds = 300};
  for (const double interval : {300.0, 1200.0, 4800.0}) {
    EXPECT_NEAR(effective_share(faults, interval), expected_effective_share(faults, interval), 0.01)
        << interval;
  }
}

TEST(Faults, AreTheSameForASeed) {
  Faults faults{.mean_seconds = kHour, .checkpoint_seconds = 60, .restart_seconds = 300};
  const double once = effective_share(faults, 600);
  EXPECT_EQ(effective_share(faults, 600), once);
  faults.seed = 2;
  EXPECT_NE(effective_share(faults, 600), once);
}

TEST(BestInterval, IsNearDalys) {
  const Faults faults{.mean_seconds = 6 * kHour, .checkpoint_seconds = 45, .restart_seconds = 300};
  const BestInterval best = best_interval(faults, 5);
  EXPECT_NEAR(best.seconds / daly_interval(faults), 1, 0.5);
  EXPECT_NEAR(young_interval(faults), std::sqrt(2 * 45 * 6 * kHour), 1e-9);
  EXPECT_GE(best.effective_share, effective_share(faults, daly_interval(faults)) - 1e-3);
  EXPECT_NEAR(std::remainder(best.seconds, 5), 0, 1e-6) << "whole steps";
}

TEST(Faults, OfAHostComeMoreOftenInMoreHosts) {
  EXPECT_DOUBLE_EQ(mean_seconds_between_faults(5000 * kHour, 128), 5000 * kHour / 128);
}

TEST(Stragglers, MakeAStepAsSlowAsTheSlowestHost) {
  const auto step = [](double slowness) { return slowness; };
  EXPECT_DOUBLE_EQ(mean_step_seconds({}, 100, step), 1);
  EXPECT_DOUBLE_EQ(mean_step_seconds({.slow_share = 1, .slow_factor = 2}, 4, step), 2);
  // One of a hundred hosts is slow with probability 1 - 0.99^100.
  EXPECT_NEAR(mean_step_seconds({.slow_share = 0.01, .slow_factor = 2, .draws = 20'000}, 100, step),
              1 + (1 - std::pow(0.99, 100)), 0.02);
  const Stragglers varied{.sigma = 0.05, .draws = 4000};
  const double few = mean_step_seconds(varied, 8, step), many = mean_step_seconds(varied, 1024, step);
  EXPECT_GT(few, 1.03);
  EXPECT_GT(many, few);
  EXPECT_NEAR(many, std::exp(0.05 * 3.24), 0.02) << "the largest of 1024 is 3.24 deviations above the mean";
}

}  // namespace
}  // namespace fsdp::simulate
