#pragma once

// SharedSegment: memory that the processes of one host share. Each rank has one; all ranks map all of them.
//
// A segment is an anonymous file in memory (memfd), so nothing is left behind whatever is killed, and no
// mount such as /dev/shm limits it. Others open it through /proc. It is large and sparse: only blocks that
// are taken have memory, and they have it before they are handed out, because touching shared memory for
// which the system has none left would end the process (SIGBUS).
//
//   [0, kControlBytes)    what all ranks write: who waits for whom
//   [kControlBytes, ...)  data; the first half is the owner's alone to write, the second is common
//
// take() and its kind, and giving blocks back, are thread-safe.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "util/free_ranges.h"

namespace fsdp::comm {

class SharedSegment {
 public:
  static constexpr int64_t kControlBytes = int64_t{64} << 20;
  static constexpr int64_t kPage = 4096;

  /// A part of the segment. It goes back when its last owner does.
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

  /// A new segment with that much address space, more than kControlBytes. Throws std::runtime_error that
  /// says why there is none.
  static std::shared_ptr<SharedSegment> create(int64_t bytes);

  /// That of another process, as it told: its number there, size and sign. Throws std::runtime_error.
  static std::shared_ptr<SharedSegment> open(pid_t pid, int fd, int64_t bytes, uint64_t sign);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  int fd() const { return fd_; }
  /// A random number at the segment's beginning, by which others know that they have opened the right one.
  uint64_t sign() const;

  /// Memory in the part for data, the part for common data or that for control, uninitialised, page-aligned;
  /// null when the system has none. Only for the owner.
  static std::unique_ptr<Block> take(const std::shared_ptr<SharedSegment>& segment, int64_t bytes);
  static std::unique_ptr<Block> take_common(const std::shared_ptr<SharedSegment>& segment, int64_t bytes);
  static std::unique_ptr<Block> take_control(const std::shared_ptr<SharedSegment>& segment, int64_t bytes);

  /// Where [data, data + bytes) lies in this segment; nothing: elsewhere.
  std::optional<int64_t> offset_of(const void* data, int64_t bytes) const;

  /// From here on blocks that are given back keep their memory, since others may still read it. All of it
  /// goes when nobody maps the segment any more.
  void keep_memory() { keeps_memory_ = true; }

  /// Of all blocks that are taken.
  int64_t taken_bytes() const;

 private:
  SharedSegment() = default;
  void map(bool own);
  int64_t common_begin() const;
  util::FreeRanges& ranges_of(int64_t offset);
  static std::unique_ptr<Block> take_from(const std::shared_ptr<SharedSegment>& segment,
                                          util::FreeRanges& ranges, int64_t bytes);
  /// Whether the system has given memory to this part.
  bool reserve(int64_t offset, int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;
  mutable std::mutex mutex_;
  std::optional<util::FreeRanges> control_, blocks_, common_;  ///< of the owner
  int64_t taken_ = 0;
  std::atomic<bool> keeps_memory_ = false;
};

}  // namespace fsdp::comm
