#include "tools/report/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace fsdp::report {
namespace {

/// Noise whose neighbours have this correlation.
std::vector<double> correlated_noise(unsigned seed, size_t count, double correlation) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values;
  double value = normal(random) / std::sqrt(1 - correlation * correlation);
  for (size_t i = 0; i < count; ++i) {
    values.push_back(value);
    value = correlation * value + normal(random);
  }
  return values;
}

TEST(MeanUnderNoise, FindsNoDifferenceInNoise) {
  for (const double correlation : {0.0, 0.5, 0.9}) {
    for (const size_t count : {11U, 100U, 400U}) {
      // Fewer values say too little about such a correlation.
      if (static_cast<double>(count) * (1 - correlation) < 10.5) continue;
      int found = 0;
      for (unsigned seed = 1; seed <= 200; ++seed) {
        const auto mean = mean_under_noise(correlated_noise(seed, count, correlation));
        ASSERT_TRUE(mean);
        found += mean->is_beyond_noise();
      }
      EXPECT_LE(found, 10) << correlation << " " << count;
    }
  }
}

TEST(MeanUnderNoise, HasTheErrorOfIndependentValues) {
  double errors = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    errors += mean_under_noise(correlated_noise(seed, 400, 0))->standard_error;
  }
  EXPECT_NEAR(errors / 100, 1 / std::sqrt(400), 0.012);
}

TEST(MeanUnderNoise, HasALargerErrorForCorrelatedValues) {
  double errors = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    errors += mean_under_noise(correlated_noise(seed, 1000, 0.9))->standard_error;
  }
  // The variance of the mean of such values is 1 / (1 - 0.9)^2 over their number.
  EXPECT_NEAR(errors / 100, 10 / std::sqrt(1000), 0.08);
}

TEST(MeanUnderNoise, FindsADifferenceWithoutAnyNoise) {
  const auto mean = mean_under_noise(std::vector<double>(10, -0.25));
  ASSERT_TRUE(mean);
  EXPECT_EQ(mean->mean, -0.25);
  EXPECT_EQ(mean->half_width, 0);
  EXPECT_TRUE(mean->is_beyond_noise());
  EXPECT_FALSE(mean_under_noise(std::vector<double>(10, 0.0))->is_beyond_noise());
}

TEST(MeanUnderNoise, IsUnknownForFewOrHugeValues) {
  EXPECT_FALSE(mean_under_noise({1, 2, 3, 4}));
  EXPECT_TRUE(mean_under_noise({1, 2, 3, 4, 5}));
  EXPECT_FALSE(mean_under_noise({}));
  EXPECT_FALSE(mean_under_noise(std::vector<double>(10, std::numeric_limits<double>::max())));
}

TEST(LogRatioUnderNoise, DoesNotCountSingleSlowSteps) {
  std::vector<double> first(100, 1000.0), second(100, 1100.0);
  for (size_t i = 0; i < first.size(); ++i)
    first[i] += static_cast<double>(i % 7), second[i] += static_cast<double>(i % 5);
  second[3] = second[50] = 1;
  const auto faster = log_ratio_under_noise(first, second);
  ASSERT_TRUE(faster);
  EXPECT_TRUE(faster->is_beyond_noise());
  EXPECT_NEAR(std::exp(faster->mean), 1.1, 0.005);
}

TEST(LogRatioUnderNoise, IsUnknownForSpeedsThatAreNone) {
  const std::vector<double> good(10, 1.0);
  EXPECT_TRUE(log_ratio_under_noise(good, good));
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    std::vector<double> bad = good;
    bad[4] = wrong;
    EXPECT_FALSE(log_ratio_under_noise(good, bad));
    EXPECT_FALSE(log_ratio_under_noise(bad, good));
  }
}

TEST(Quartiles, AreInterpolated) {
  const Quartiles of = quartiles_of({4, 1, 3, 2});
  EXPECT_EQ(of.lower, 1.75);
  EXPECT_EQ(of.median, 2.5);
  EXPECT_EQ(of.upper, 3.25);
  EXPECT_EQ(quartiles_of({7}).upper, 7);
}

}  // namespace
}  // namespace fsdp::report
