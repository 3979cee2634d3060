#pragma once

// Batches made ahead by a thread of their own, so that a step finds its next one ready: what a slow disk
// takes is hidden behind compute.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "data/loader.h"

namespace fsdp::data {

/// Gives what `source` gives, in any order that it is asked for; ready are those that follow the one asked
/// for last. An error of the source is thrown when the batch that it belongs to is asked for. One thread at a
/// time may ask.
class PrefetchingBatches final : public BatchSource {
 public:
  /// `depth` batches ahead, at least 1. The source must outlive the object; it is asked from the other
  /// thread.
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
  /// Forgets what was made, and goes on from `position` (-1: with nothing).
  void begin_at(int64_t position) const;

  const TrainLoader& source_;
  const int64_t depth_;
  // All that follows is guarded by the mutex.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::deque<Made> ready_;
  mutable int64_t making_ = -1;  ///< position that the thread makes now; -1: none that is of use
  mutable int64_t next_ = -1;    ///< position that it makes next; -1: none
  mutable int64_t round_ = 0;    ///< counts the times that positions did not follow
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace fsdp::data
