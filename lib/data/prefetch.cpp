#include "data/prefetch.h"

#include <utility>

#include "util/error.h"

namespace fsdp::data {

PrefetchingBatches::PrefetchingBatches(const TrainLoader& source, int64_t depth)
    : source_(source), depth_(depth), queue_(/*threads=*/1) {
  FSDP_CHECK(depth >= 1);
}

Batch PrefetchingBatches::batch(int64_t first_global_sample, int64_t micro_batch) const {
  // A micro-batch depends only on where it begins, so one sequence covers steps of any length.
  const int64_t step = source_.samples_per_micro_step(), position = first_global_sample + micro_batch * step;
  if (!ahead_.empty() && ahead_.front().position != position) {
    queue_.clear();
    ahead_.clear();
  }
  while (static_cast<int64_t>(ahead_.size()) <= depth_) {
    const int64_t next = ahead_.empty() ? position : ahead_.back().position + step;
    ahead_.push_back({next, queue_.add([this, next] { return source_.batch(next, 0); })});
  }
  std::future<Batch> batch = std::move(ahead_.front().batch);
  ahead_.pop_front();
  return batch.get();
}

}  // namespace fsdp::data
