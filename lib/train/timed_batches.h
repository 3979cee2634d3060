#pragma once

// Batches of another source, and how long the training thread had to wait for them.

#include <chrono>
#include <cstdint>

#include "data/loader.h"

namespace fsdp::train {

/// Not thread-safe. The source must outlive it.
class TimedBatches final : public data::BatchSource {
 public:
  explicit TimedBatches(const data::BatchSource& source) : source_(source) {}

  data::Batch batch(int64_t first_global_sample, int64_t micro_batch) const override {
    const auto begin = Clock::now();
    data::Batch batch = source_.batch(first_global_sample, micro_batch);
    waited_ += Clock::now() - begin;
    return batch;
  }

  /// Since the last call, or the beginning.
  double take_seconds() const {
    const double seconds = std::chrono::duration<double>(waited_).count();
    waited_ = Clock::duration::zero();
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const data::BatchSource& source_;
  mutable Clock::duration waited_{};
};

}  // namespace fsdp::train
