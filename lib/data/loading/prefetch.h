#pragma once

// Batches that are read in a separate thread and copied to the device in the background, so that the time of
// slow disks and copies is hidden by computation.

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>

#include "base/tensor/device_feed.h"
#include "data/loading/loader.h"

namespace fsdp::data {

struct PrefetchOptions {
  int64_t depth = 2;             ///< batches that a thread reads ahead, one of them also copied; 0: no thread
  at::Device device = at::kCPU;  ///< device to which inputs, targets and Batch::is_token are copied
  int64_t end = std::numeric_limits<int64_t>::max();  ///< position from which on no batch is prefetched
  /// Called with each batch in host memory, by the thread that reads. Sets the tensors to be copied.
  std::function<void(Batch&)> on_reading = nullptr;
  std::function<void(Batch&)> on_arrival = nullptr;  ///< called with each batch before it is returned
};

/// Returns the batches of `source` in any order, on the device, and prefetches those that follow the last one
/// requested. Document starts stay in host memory, where the model reads them. An error of the source is
/// thrown when its batch is requested. Requires: one thread at a time calls batch(), the one that computes.
class PrefetchingBatches final : public BatchSource {
 public:
  /// Requires: the source outlives the object. Its thread calls the source. A micro-batch depends only on its
  /// first position; the next one begins `samples_per_micro_step` later.
  PrefetchingBatches(const BatchSource& source, int64_t samples_per_micro_step,
                     const PrefetchOptions& options);
  PrefetchingBatches(const TrainLoader& source, const PrefetchOptions& options)
      : PrefetchingBatches(source, source.samples_per_micro_step(), options) {}

  Batch batch(int64_t first_global_sample, int64_t micro_batch) const override;

 private:
  struct Prefetched {
    int64_t position;
    std::shared_ptr<Batch> batch;  ///< batch read by the thread; its tensors arrive through feed_
    std::shared_ptr<std::vector<at::Tensor*>> places;  ///< where the tensors that arrive belong in it
  };

  void read_ahead(int64_t position) const;

  const BatchSource& source_;
  const int64_t step_;
  const PrefetchOptions options_;
  mutable std::deque<Prefetched> ahead_;
  mutable util::DeviceFeed feed_;
};

}  // namespace fsdp::data
