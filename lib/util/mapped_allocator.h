#pragma once

// MappedAllocator gives CPU tensors of 128 KiB and more memory maps of their own.
//
// malloc keeps what was freed for later requests, in holes that later requests may not fit, and a training
// process ends up with half as much again as its tensors ever took at once. Here a freed block waits to be
// used again too, but by a request of about its size, and all blocks together are never much more than the
// most that tensors have needed at one time (util/held_bytes.h): a request for which nothing waits gives
// back, to the system, what has waited longest. So the peak of resident memory is about the peak that a plan
// computes, and where steps are alike, blocks change hands without the system. Blocks of 4 MiB and more ask
// for huge pages.
//
// Process-wide, for programs: the library does not install it. Thread-safe.

#include <c10/core/Allocator.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "util/held_bytes.h"

namespace fsdp::util {

class MappedAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive everything.
  static MappedAllocator& instance();

  /// From here on CPU tensors come from it. Call it before other threads allocate tensors.
  static void install();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t bytes) const override;

  /// Of maps, in use and waiting.
  int64_t held_bytes() const;
  /// Of maps in use, as asked for.
  int64_t live_bytes() const;
  /// Gives back what waits.
  void trim();

 private:
  MappedAllocator() = default;
  static void release(void* data);
  void* take(int64_t bytes);
  void give_up(size_t count);

  struct Block {
    int64_t asked = 0, size = 0;
  };
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::vector<void*> waiting_;  ///< the longest first
  std::vector<int64_t> waiting_sizes_;
  int64_t held_ = 0, live_ = 0, peak_ = 0;
};

}  // namespace fsdp::util
