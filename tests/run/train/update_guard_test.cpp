#include "run/train/update_guard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fsdp::train {
namespace {

config::TrainingOptions looking_for_spikes(double zscore, int64_t window) {
  config::TrainingOptions options;
  options.skip_zscore = zscore;
  options.skip_window = window;
  return options;
}

/// A loss and norm that sway a little, by the step.
double swaying(int64_t step) { return 3 + 0.1 * std::sin(static_cast<double>(step)); }

UpdateGuard after_steps(const config::TrainingOptions& options, int64_t steps) {
  UpdateGuard guard(options);
  for (int64_t step = 0; step < steps; ++step) guard.accept(swaying(step), 2 * swaying(step));
  return guard;
}

TEST(UpdateGuard, IsWantedWhereSomethingIsToBeSkipped) {
  EXPECT_FALSE(config::TrainingOptions{}.may_skip_updates());
  EXPECT_TRUE(looking_for_spikes(3, 8).may_skip_updates());
  config::TrainingOptions options;
  options.skip_nonfinite = true;
  EXPECT_TRUE(options.may_skip_updates());
}

TEST(UpdateGuard, FindsSpikesOfLossAndNormAboveTheMean) {
  UpdateGuard guard = after_steps(looking_for_spikes(5, 20), 20);
  EXPECT_EQ(guard.outlier(3.1, 6.1), "");
  EXPECT_EQ(guard.outlier(-100, 0), "") << "below the mean is no spike";
  EXPECT_NE(guard.outlier(5, 6).find("its loss 5 is "), std::string::npos) << guard.outlier(5, 6);
  EXPECT_NE(guard.outlier(3, 9).find("its gradient norm 9 is "), std::string::npos);
  EXPECT_NE(guard.outlier(3, 9).find("of 20 steps"), std::string::npos);
}

// Of 1, 2, 3, 4 the mean is 2.5 and the deviation sqrt(1.25).
TEST(UpdateGuard, MeasuresInStandardDeviationsOfTheWindow) {
  UpdateGuard guard(looking_for_spikes(3, 4));
  for (double value : {100.0, 1.0, 2.0, 3.0, 4.0}) guard.accept(value, 1);
  const double limit = 2.5 + 3 * std::sqrt(1.25);
  EXPECT_EQ(guard.outlier(limit - 1e-9, 1), "");
  EXPECT_NE(guard.outlier(limit + 1e-9, 1), "");
}

TEST(UpdateGuard, WaitsForAWholeWindow) {
  EXPECT_EQ(after_steps(looking_for_spikes(3, 20), 19).outlier(1000, 1000), "");
  EXPECT_NE(after_steps(looking_for_spikes(3, 20), 20).outlier(1000, 1000), "");
}

TEST(UpdateGuard, TakesNoSpikeOutOfConstantNumbers) {
  UpdateGuard guard(looking_for_spikes(3, 4));
  for (int i = 0; i < 4; ++i) guard.accept(2, 2);
  EXPECT_EQ(guard.outlier(2.001, 2), "");
}

TEST(UpdateGuard, LooksForNoSpikesUnlessAsked) {
  config::TrainingOptions options;
  options.skip_nonfinite = true;
  options.skip_window = 4;
  UpdateGuard guard = after_steps(options, 20);
  EXPECT_TRUE(guard.skips_nonfinite());
  EXPECT_EQ(guard.outlier(1e9, 1e9), "");
}

TEST(UpdateGuard, BearsSoManySkippedStepsInARow) {
  config::TrainingOptions options = looking_for_spikes(3, 4);
  options.max_skipped_steps = 2;
  UpdateGuard guard(options);
  EXPECT_TRUE(guard.skip());
  EXPECT_TRUE(guard.skip());
  guard.accept(1, 1);
  EXPECT_TRUE(guard.skip());
  EXPECT_TRUE(guard.skip());
  EXPECT_FALSE(guard.skip());
  EXPECT_EQ(guard.skipped(), 5);
  EXPECT_EQ(guard.skipped_in_a_row(), 3);
  options.max_skipped_steps = 0;
  EXPECT_FALSE(UpdateGuard(options).skip());
}

TEST(UpdateGuard, ContinuesFromASavedStateAsIfUninterrupted) {
  const config::TrainingOptions options = looking_for_spikes(5, 8);
  UpdateGuard through = after_steps(options, 11), resumed(options);
  EXPECT_TRUE(through.skip());
  // As text, as in a manifest: no digit is lost.
  resumed.set_state(nlohmann::json::parse(through.state().dump()));
  EXPECT_EQ(resumed.state(), through.state());
  EXPECT_EQ(resumed.skipped_in_a_row(), 1);
  for (double loss : {3.0, 3.3, 3.6, 9.0}) EXPECT_EQ(resumed.outlier(loss, 6), through.outlier(loss, 6));
}

TEST(UpdateGuard, FitsARestoredStateToItsWindow) {
  UpdateGuard wide = after_steps(looking_for_spikes(5, 20), 20);
  UpdateGuard narrow(looking_for_spikes(5, 8));
  narrow.set_state(wide.state());
  EXPECT_EQ(narrow.state().at("losses").size(), 8u);
  EXPECT_EQ(narrow.state().at("losses").back(), swaying(19));
  EXPECT_THROW(narrow.set_state({{"skipped", 1}}), nlohmann::json::exception);
}

}  // namespace
}  // namespace fsdp::train
