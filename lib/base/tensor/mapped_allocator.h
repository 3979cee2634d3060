#pragma once

// MappedAllocator gives CPU tensors of 128 KiB and more places in one region of addresses.
//
// malloc keeps freed memory in holes that later requests may not fit, so that a training process takes half
// as much again as its tensors ever needed at once. Here freed neighbours are merged, so that a gradient
// takes the place of the activations of several layers. All memory together is at most most_held_bytes(): if
// a request fits into no freed place, the largest freed places are first returned to the system. Peak
// resident memory is therefore close to the peak that a plan computes, and identical steps find their places
// without system calls. The region requests huge pages.
//
// Process-wide. Programs install it; the library does not. Thread-safe.

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "base/util/free_ranges.h"

namespace fsdp::util {

/// Limit on the held memory, given the peak of the bytes of tensors. The margin keeps freed places for
/// requests of different sizes; without it, the system would clear some memory again in each step.
constexpr int64_t most_held_bytes(int64_t peak_bytes) {
  constexpr int64_t kLeastSpare = 16 << 20;
  return peak_bytes + std::max(peak_bytes / 32, kLeastSpare);
}

class MappedAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive every other static object.
  static MappedAllocator& instance();

  /// Makes this the allocator of CPU tensors. Requires: no other thread allocates tensors.
  static void install();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t bytes) const override;

  /// Memory of the region that is in use, or was freed and not yet returned to the system.
  int64_t held_bytes() const;
  /// Memory in use.
  int64_t live_bytes() const;
  /// Returns all unused memory to the system.
  void trim();

 private:
  MappedAllocator();
  static void release(void* data);
  std::byte* take(int64_t bytes);
  bool make_usable(int64_t end);
  void give_up(int64_t bytes);

  mutable std::mutex mutex_;
  std::byte* region_ = nullptr;
  int64_t length_ = 0, usable_ = 0;          ///< length of the region, and of its writable beginning
  FreeRanges freed_{0, 0}, unused_{0, 0};    ///< free places with memory, and those without
  std::unordered_map<void*, int64_t> used_;  ///< bytes by address
  int64_t held_ = 0, live_ = 0, peak_ = 0;
};

}  // namespace fsdp::util
