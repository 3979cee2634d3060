#include "model/kernels/step_outcome.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fsdp::kernels {
namespace {

at::Tensor doubles(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

StepOutcome decided(DeviceOutcome& outcome, double loss, double norm, const OutcomeRule& rule) {
  outcome.decide(doubles({loss, norm}), doubles({loss})[0], rule);
  return outcome.read();
}

TEST(StepOutcome, ClipsByTheGlobalNorm) {
  DeviceOutcome outcome(at::kCPU);
  EXPECT_EQ(decided(outcome, 8, 16, {.ranks = 4}).loss, 2);
  EXPECT_EQ(outcome.read().grad_norm, 4);
  EXPECT_EQ(outcome.gradient_scale().item<double>(), 1) << "no clipping";
  EXPECT_EQ(decided(outcome, 8, 16, {.max_grad_norm = 1}).gradient_scale, 1 / (4 + 1e-6));
  EXPECT_EQ(decided(outcome, 8, 16, {.max_grad_norm = 4}).gradient_scale, 1);
  EXPECT_DOUBLE_EQ(decided(outcome, 8, 27, {.norm_type = 3}).grad_norm, 3);
}

TEST(StepOutcome, ForbidsUpdatesFromTheFirstStepThatIsNotFinite) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (bool loss : {true, false}) {
      DeviceOutcome outcome(at::kCPU);
      EXPECT_EQ(decided(outcome, 1, 1, {.step = 4}).diverged_step, 0);
      EXPECT_EQ(decided(outcome, loss ? bad : 2, loss ? 4 : bad, {.step = 5}).diverged_step, 5);
      const StepOutcome later = decided(outcome, 3, 9, {.step = 6});
      EXPECT_TRUE(std::isnan(later.gradient_scale));
      EXPECT_EQ(later.loss, 3);
      EXPECT_EQ(later.diverged_step, 5);
      EXPECT_FALSE(std::isfinite(loss ? later.diverged_loss : later.diverged_grad_norm));
      EXPECT_EQ(loss ? later.diverged_grad_norm : later.diverged_loss, 2);
      EXPECT_EQ(std::isfinite(later.diverged_local_loss), !loss);
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
