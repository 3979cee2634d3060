#pragma once

// Prefetches batches in a separate thread, so that the time of a slow disk is hidden behind compute.

#include <cstdint>
#include <deque>
#include <future>

#include "data/loader.h"
#include "data/work_queue.h"

namespace fsdp::data {

/// Returns the batches of `source`, in any order; those that follow the last one requested are prefetched. An
/// error of the source is thrown when its batch is requested. Only one thread at a time may call batch().
class PrefetchingBatches final : public BatchSource {
 public:
  /// Prefetches `depth` batches, at least 1. The source must outlive the object; the other thread calls it.
  PrefetchingBatches(const TrainLoader& source, int64_t depth);

  Batch batch(int64_t first_global_sample, int64_t micro_batch) const override;

 private:
  struct Prefetched {
    int64_t position;
    std::future<Batch> batch;
  };

  const TrainLoader& source_;
  const int64_t depth_;
  mutable std::deque<Prefetched> ahead_;
  mutable WorkQueue<Batch> queue_;
};

}  // namespace fsdp::data
