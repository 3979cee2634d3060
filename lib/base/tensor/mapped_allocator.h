#pragma once

// MappedAllocator gives CPU tensors of 128 KiB and more places in one region of addresses.
//
// malloc keeps freed memory in holes that later requests may not fit, and a training process ends up with
// half as much again as its tensors ever took at once. Here freed neighbours become one place, so that a gradient takes
// the place of the activations of several layers; and all memory together is at most most_held_bytes(): where a request
// fits into no place that was freed, the largest of these first return to the system. So peak resident memory is close
// to the peak that a plan computes, and steps that are alike find their places without system calls. The region asks
// for huge pages.
//
// Process-wide, for programs: the library does not install it. Thread-safe.

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/util/free_ranges.h"

namespace fsdp::util {

/// Limit on the memory that is held, given the peak of the bytes of tensors. What it is more leaves freed places apart
/// for requests of different sizes; without it, the system would clear some memory again in each step.
constexpr int64_t most_held_bytes(int64_t peak_bytes) {
  constexpr int64_t kLeastSpare = 16 << 20;
  return peak_bytes + std::max(peak_bytes / 32, kLeastSpare);
}

class MappedAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive every other static object.
  static MappedAllocator& instance();

  /// Makes it the allocator of CPU tensors. Call it before other threads allocate tensors.
  static void install();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t bytes) const override;

  /// Memory of the region that is used or was freed and not returned to the system.
  int64_t held_bytes() const;
  /// Memory in use.
  int64_t live_bytes() const;
  /// Returns all memory to the system that is not in use.
  void trim();

 private:
  MappedAllocator();
  static void release(void* data);
  std::byte* take(int64_t bytes);
  bool make_usable(int64_t end);
  void give_up(int64_t bytes);

  mutable std::mutex mutex_;
  std::byte* region_ = nullptr;
  int64_t length_ = 0, usable_ = 0;          ///< of the region, and of its beginning that may be written to
  FreeRanges freed_{0, 0}, unused_{0, 0};    ///< places that hold memory, and others
  std::unordered_map<void*, int64_t> used_;  ///< bytes
  int64_t held_ = 0, live_ = 0, peak_ = 0;
};

}  // namespace fsdp::util
