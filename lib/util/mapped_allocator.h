#pragma once

// MappedAllocator gives each CPU tensor of 128 KiB and more mapped memory of its own.
//
// malloc keeps freed memory in holes that later requests may not fit, and a training process ends up with
// half as much again as its tensors ever took at once. Here a freed block waits for a request of about its
// size, and all blocks together take at most most_held_bytes(): a request for which no block waits first
// returns to the system the blocks that have waited longest. So peak resident memory is close to the peak
// that a plan computes, and steps that are alike reuse their blocks without system calls. All ask for huge
// pages: those of 4 MiB and more have maps of their own, smaller ones lie side by side in common ones.
//
// Process-wide, for programs: the library does not install it. Thread-safe.

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace fsdp::util {

/// Limit on the bytes of all blocks, given the peak of the bytes of tensors. The fixed part lets a small
/// model, few of whose blocks are alike in size, keep what each step needs again.
constexpr int64_t most_held_bytes(int64_t peak_bytes) {
  constexpr int64_t kLeastSpare = 16 << 20;
  return peak_bytes + std::max(peak_bytes / 5, kLeastSpare);
}

/// Which of the waiting blocks serves a request.
struct BlockChoice {
  std::optional<size_t> reuse;  ///< index of the waiting block; nothing: a new block of the size asked for
  size_t give_up = 0;           ///< number of waiting blocks, from the first on, to free before
};

/// `waiting`: sizes of the unused blocks. `held`: bytes of all blocks. `most`: limit on `held`. If a new
/// block would exceed it, a block of up to `largest_reuse` times the size asked for is taken before others
/// are given up.
BlockChoice choose_block(const std::vector<int64_t>& waiting, int64_t nbytes, int64_t held, int64_t most,
                         int64_t largest_reuse = 1);

class MappedAllocator final : public c10::Allocator {
 public:
  /// Never destroyed: tensors may outlive every other static object.
  static MappedAllocator& instance();

  /// Makes it the allocator of CPU tensors. Call it before other threads allocate tensors.
  static void install();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* target, const void* source, std::size_t bytes) const override;

  /// Bytes of all blocks, used and waiting.
  int64_t held_bytes() const;
  /// Bytes of the blocks in use, as asked for.
  int64_t live_bytes() const;
  /// Frees all waiting blocks.
  void trim();

 private:
  MappedAllocator() = default;
  static void release(void* data);
  void* take(int64_t bytes);
  /// nullptr if the system refuses.
  void* new_block(int64_t bytes);
  void give_up(size_t count);

  struct Block {
    int64_t asked = 0, size = 0;
  };
  mutable std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::vector<void*> waiting_;  ///< the one that has waited longest first
  std::vector<int64_t> waiting_sizes_;
  int64_t held_ = 0, live_ = 0, peak_ = 0;
  std::byte* room_ = nullptr;  ///< the part of the newest common map in which no block lies yet
  int64_t room_bytes_ = 0;
};

}  // namespace fsdp::util
