#include "state/groups/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/util/error.h"

namespace fsdp::optim {
namespace {

GradScalerOptions short_interval() {
  GradScalerOptions options;
  options.init_scale = 64;
  options.growth_interval = 3;
  return options;
}

/// The scale after each step; true: the step's gradients overflowed.
std::vector<double> scales_after(GradScaler& scaler, const std::vector<bool>& steps) {
  std::vector<double> scales;
  for (bool overflowed : steps) {
    EXPECT_TRUE(scaler.update(overflowed));
    scales.push_back(scaler.scale());
  }
  return scales;
}

using Scales = std::vector<double>;

TEST(GradScaler, GrowsAfterAnIntervalOfGoodSteps) {
  GradScaler scaler(short_interval());
  EXPECT_EQ(scaler.scale(), 64);
  EXPECT_EQ(scales_after(scaler, std::vector<bool>(7)), (Scales{64, 64, 128, 128, 128, 256, 256}));
}

TEST(GradScaler, BacksOffAtOnceAndStartsTheIntervalAgain) {
  GradScaler scaler(short_interval());
  EXPECT_EQ(scales_after(scaler, {false, false, true, false, false, false, true, true}),
            (Scales{64, 64, 32, 32, 32, 64, 32, 16}));
}

TEST(GradScaler, FollowsItsFactors) {
  auto options = short_interval();
  options.growth_factor = 1.5;
  options.backoff_factor = 0.25;
  options.growth_interval = 1;
  GradScaler scaler(options);
  EXPECT_EQ(scales_after(scaler, {false, false, true}), (Scales{96, 144, 36}));
}

TEST(GradScaler, SaysWhenTheScaleIsAtItsFloorAndGradientsStillOverflow) {
  auto options = short_interval();
  options.min_scale = 20;
  GradScaler scaler(options);
  EXPECT_EQ(scales_after(scaler, {true, true}), (Scales{32, 20}));
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 20);
  // A good step at min_scale counts as usual.
  EXPECT_EQ(scales_after(scaler, {false, false, false, true}), (Scales{20, 20, 40, 20}));
  EXPECT_FALSE(scaler.update(true));
}

TEST(GradScaler, StaysWithinTheRangeOfFloat32) {
  auto options = short_interval();
  options.init_scale = std::ldexp(1, 127);
  options.growth_interval = 1;
  GradScaler scaler(options);
  EXPECT_EQ(scales_after(scaler, {false, false}), (Scales{options.init_scale, options.init_scale}));
}

TEST(GradScaler, ContinuesFromASavedStateAsIfUninterrupted) {
  const std::vector<bool> before = {false, false, false, true, false, false},
                          after = {false, false, true, false, false, false, false};
  GradScaler through(short_interval()), first(short_interval()), second(short_interval());
  scales_after(through, before);
  Scales expected = scales_after(through, after);
  scales_after(first, before);
  second.set_state(first.state());
  EXPECT_EQ(second.state().growth_tracker, 2);
  EXPECT_EQ(scales_after(second, after), expected);
}

TEST(GradScaler, FitsARestoredStateToItsOwnOptions) {
  auto options = short_interval();
  options.min_scale = 16;
  GradScaler scaler(options);
  scaler.set_state({.scale = 4, .growth_tracker = 1000});
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_EQ(scales_after(scaler, {false, false}), (Scales{32, 32}));
}

void expect_scaler_refused(const std::function<void()>& action, ErrorKind kind, const std::string& part) {
  try {
    action();
    ADD_FAILURE() << "not refused: " << part;
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(GradScaler, RefusesImpossibleNumbers) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  auto refused = [](auto change, const std::string& part) {
    GradScalerOptions options;
    change(options);
    expect_scaler_refused([&] { GradScaler scaler(options); }, ErrorKind::kUsage, part);
  };
  for (double bad : {0.0, -1.0, 0.5, 1e39, infinity, nan}) {
    refused([&](auto& o) { o.init_scale = bad; }, "loss_scaler.init_scale = ");
  }
  for (double bad : {1.0, 0.5, infinity, nan}) {
    refused([&](auto& o) { o.growth_factor = bad; }, "loss_scaler.growth_factor = ");
  }
  for (double bad : {0.0, 1.0, -0.5, nan}) {
    refused([&](auto& o) { o.backoff_factor = bad; }, "loss_scaler.backoff_factor = ");
  }
  for (double bad : {0.0, -1.0, infinity, nan}) {
    refused([&](auto& o) { o.min_scale = bad; }, "loss_scaler.min_scale = ");
  }
  refused([](auto& o) { o.growth_interval = 0; }, "loss_scaler.growth_interval = 0");

  GradScaler scaler(short_interval());
  for (GradScalerState bad : {GradScalerState{0, 0}, {nan, 0}, {infinity, 0}, {64, -1}}) {
    expect_scaler_refused([&] { scaler.set_state(bad); }, ErrorKind::kCheckpoint,
                          "the gradient scale must be ");
  }
  EXPECT_EQ(scaler.scale(), 64);
}

TEST(GradScaler, IsUsedWithFloat16UnlessTheOptionsSayOtherwise) {
  GradScalerOptions options;
  EXPECT_TRUE(uses_grad_scaler(options, true));
  EXPECT_FALSE(uses_grad_scaler(options, false));
  options.enabled = "true";
  EXPECT_TRUE(uses_grad_scaler(options, false));
  options.enabled = "false";
  EXPECT_FALSE(uses_grad_scaler(options, true));
  EXPECT_THROW(options.enabled = "yes", util::Error);
}

}  // namespace
}  // namespace fsdp::optim
