#pragma once

// Prefetches batches in a separate thread, so that the time of a slow disk is hidden behind compute.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "data/loader.h"

namespace fsdp::data {

/// Returns the batches of `source`, in any order; those that follow the last one requested are prefetched. An
/// error of the source is thrown when its batch is requested. Only one thread at a time may call batch().
class PrefetchingBatches final : public BatchSource {
 public:
  /// Prefetches `depth` batches, at least 1. The source must outlive the object; the other thread calls it.
  PrefetchingBatches(const TrainLoader& source, int64_t depth);
  ~PrefetchingBatches() override;

  Batch batch(int64_t first_global_sample, int64_t micro_batch) const override;

 private:
  struct Made {
    int64_t position = 0;
    Batch batch{};
    std::exception_ptr error;
  };

  void work();
  /// Discards prefetched batches and continues at `position` (-1: stops prefetching).
  void begin_at(int64_t position) const;

  const TrainLoader& source_;
  const int64_t depth_;
  // All that follows is guarded by the mutex.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::deque<Made> ready_;
  mutable int64_t making_ = -1;  ///< position that the thread reads now; -1: none, or one that is not wanted
  mutable int64_t next_ = -1;    ///< position that it reads next; -1: none
  mutable int64_t round_ = 0;    ///< counts the calls of begin_at()
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace fsdp::data
