#pragma once

// MemoryTape: what a step takes and gives back of tensor memory, one event after another, as numbers only.

#include <algorithm>
#include <cstdint>

namespace fsdp::plan {

class MemoryTape {
 public:
  void take(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void give(int64_t bytes) { live_ -= bytes; }
  /// Memory that is gone again before the next event.
  void touch(int64_t bytes) { peak_ = std::max(peak_, live_ + bytes); }

  /// The peak counts from here.
  void reset_peak() { peak_ = live_; }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_ = 0, peak_ = 0;
};

}  // namespace fsdp::plan
