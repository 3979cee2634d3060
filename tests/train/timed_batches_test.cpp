#include "train/timed_batches.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

/// Takes some time, and tells how much of it passed.
class SlowSource final : public data::BatchSource {
 public:
  data::Batch batch(int64_t first_global_sample, int64_t micro_batch) const override {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    while (Clock::now() - begin < std::chrono::milliseconds(2)) {
    }
    data::Batch batch;
    batch.valid_rows = first_global_sample + micro_batch;
    return batch;
  }
};

TEST(TimedBatches, CountsTheTimeOfTheSourceSinceItWasAskedLast) {
  SlowSource source;
  TimedBatches batches(source);
  EXPECT_EQ(batches.take_seconds(), 0);
  EXPECT_EQ(batches.batch(40, 2).valid_rows, 42);
  batches.batch(0, 0);
  EXPECT_GE(batches.take_seconds(), 0.004);
  EXPECT_EQ(batches.take_seconds(), 0);
}

}  // namespace
}  // namespace fsdp::train
