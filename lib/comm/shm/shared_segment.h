#pragma once

// SharedSegment: memory that the processes of one host share. Each rank has one; all ranks map all of them.
//
// A segment is an anonymous file in memory (memfd), so nothing is left behind however a process ends, and no
// mount such as /dev/shm limits its size. Other processes open it through /proc. It is large and sparse: only
// blocks that are taken have memory, and they have it before take() returns, because touching shared memory
// that the system cannot provide would end the process (SIGBUS).
//
//   [0, kControlBytes)    written by all ranks: who waits for whom
//   [kControlBytes, ...)  data; the first half is written by the owner alone, the second half by all ranks
//
// Taking blocks and giving them back is thread-safe.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/util/free_ranges.h"

namespace fsdp::comm {

class SharedSegment {
 public:
  static constexpr int64_t kControlBytes = int64_t{64} << 20;

  /// A part of the segment, given back when the Block is destroyed.
  struct Block {
    std::shared_ptr<SharedSegment> segment;
    int64_t offset = 0;
    int64_t bytes = 0;
    void* data() const { return segment->data() + offset; }
    Block(std::shared_ptr<SharedSegment> s, int64_t o, int64_t b)
        : segment(std::move(s)), offset(o), bytes(b) {}
    ~Block() { segment->give_back(offset, bytes); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
  };

  /// A new segment with `bytes` of address space, which must exceed kControlBytes. Throws std::runtime_error
  /// with the reason if there can be none.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);

  /// The segment of process `pid` with this descriptor, size and sign there. Throws std::runtime_error.
  static std::shared_ptr<SharedSegment> open(pid_t pid, int fd, int64_t bytes, uint64_t sign);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  int fd() const { return fd_; }
  /// A random number at the beginning of the segment, by which other processes verify that they have opened
  /// the right one.
  uint64_t sign() const;

  enum class Part { kOwn, kCommon, kControl };
  /// A block in the part for the owner's data, for common data or for control: uninitialised, page-aligned;
  /// null if the system has no memory left. Called only by the owner.
  static std::unique_ptr<Block> take(const std::shared_ptr<SharedSegment>& segment, int64_t bytes,
                                     Part part = Part::kOwn);

  /// The offset of [data, data + bytes) in this segment, if it lies inside.
  std::optional<int64_t> offset_of(const void* data, int64_t bytes) const;

  /// Blocks given back after this call keep their memory, because other processes may still read it. The
  /// system frees the memory with the last mapping of the segment.
  void keep_memory() { keeps_memory_ = true; }

  /// Total size of the blocks that are taken.
  int64_t taken_bytes() const;

 private:
  SharedSegment() = default;
  void map(bool own);
  int64_t common_begin() const;
  util::FreeRanges& ranges_of(Part part) { return *free_[static_cast<size_t>(part)]; }
  /// Makes the system provide memory for this part; returns whether it did.
  bool reserve(int64_t offset, int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;
  mutable std::mutex mutex_;
  std::array<std::optional<util::FreeRanges>, 3> free_;  ///< indexed by Part; only the owner has them
  int64_t taken_ = 0;
  std::atomic<bool> keeps_memory_ = false;
};

/// Blocks until a futex_wake_all() unless `word` differs from `value` (futex(2)), across processes. Also
/// returns after the time and spuriously, so callers must check `word`.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t milliseconds);
void futex_wake_all(std::atomic<uint32_t>& word);

}  // namespace fsdp::comm
