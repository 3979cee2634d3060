#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "run/train/run_parts.h"

namespace fsdp::train {
namespace {

std::vector<int64_t> first_steps(int64_t accumulation, int64_t warmup, int64_t count) {
  config::TrainingOptions options;
  options.gradient_accumulation_steps = accumulation;
  options.batch_warmup_steps = warmup;
  std::vector<int64_t> micro_batches;
  for (int64_t step = 1; step <= count; ++step) micro_batches.push_back(micro_steps_of(options, step));
  return micro_batches;
}

TEST(BatchWarmup, RisesEvenlyToTheWholeBatch) {
  EXPECT_EQ(first_steps(4, 6, 8), (std::vector<int64_t>{1, 1, 2, 2, 3, 3, 4, 4}));
  EXPECT_EQ(first_steps(8, 2, 4), (std::vector<int64_t>{1, 4, 8, 8}));
}

TEST(BatchWarmup, OfNoStepsLeavesTheBatchAlone) {
  EXPECT_EQ(first_steps(3, 0, 2), (std::vector<int64_t>{3, 3}));
}

TEST(BatchWarmup, StaysInBoundsForAnyNumbers) {
  config::TrainingOptions options;
  options.gradient_accumulation_steps = options.batch_warmup_steps = std::numeric_limits<int64_t>::max();
  for (int64_t step : {int64_t{1}, int64_t{1} << 40, options.batch_warmup_steps}) {
    EXPECT_GE(micro_steps_of(options, step), 1);
    EXPECT_LE(micro_steps_of(options, step), options.gradient_accumulation_steps);
  }
}

}  // namespace
}  // namespace fsdp::train
