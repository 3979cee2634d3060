#pragma once

// Placement of buffers in a memory region, computed on numbers alone so that a plan can simulate it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace fsdp::util {

/// The free parts of [begin, end). Takes the best fit, the first among equals. Merges freed neighbours.
class FreeRanges {
 public:
  FreeRanges(int64_t begin, int64_t end) {
    if (end > begin) free_[begin] = end - begin;
  }
  /// Returns the offset of the range taken; nothing if no part is large enough.
  std::optional<int64_t> take(int64_t bytes, int64_t alignment);
  void give_back(int64_t offset, int64_t bytes);
  /// {offset, bytes} of the largest free part, the first among equals; {0, 0} if nothing is free.
  std::pair<int64_t, int64_t> largest() const;
  /// Takes the last `bytes` of the free part at `offset`.
  void shorten(int64_t offset, int64_t bytes);
  /// Offset of the last free part.
  int64_t last_begin() const { return free_.rbegin()->first; }

 private:
  std::map<int64_t, int64_t> free_;  ///< length by offset
};

/// Places of buffers in one region. A buffer that does not fit into the region is outside, in separate
/// memory. Two layouts ("ways") are tracked at once, and the one that needs less is used when the region
/// grows. Way 0 places all buffers from the start, which suits buffers of similar sizes. Way 1 places two
/// sorts of buffers from the two ends, which leaves fewer holes if only buffers of the same sort have similar
/// sizes.
class Arena {
 public:
  static constexpr int64_t kAlignment = 64;  ///< alignment of every offset: a cache line

  enum class Sort { kFirst, kSecond };
  struct Allocation {
    Sort sort = Sort::kFirst;
    int64_t bytes = 0;
    std::array<int64_t, 2> distances = {};  ///< distance from the end that the sort is placed at, by way
    bool is_outside = false;
    int64_t offset = 0;  ///< offset in the region; meaningless if the buffer is outside
  };

  struct Shape {
    int64_t length = 0;
    size_t way = 0;
  };

  Allocation take(int64_t bytes, Sort sort);
  void give_back(const Allocation& place);

  Shape shape() const { return {length_, way_}; }
  /// Makes grow() reach this shape at once, for a caller that knows its demand.
  void reserve(const Shape& shape) { reserved_ = shape; }

  /// Number of places in use.
  int64_t live() const { return live_; }
  int64_t length() const { return length_; }
  /// The length that would have kept all buffers inside, or the reserved one; nothing up to length().
  std::optional<int64_t> longer() const;
  /// Sets the length to longer(), if there is one. Only while no place is in use.
  void grow();
  void clear();

 private:
  static constexpr int64_t kEndless = int64_t{1} << 62;
  struct ArenaWay {
    FreeRanges low{0, kEndless}, high{0, kEndless};  ///< free parts, by their distance from either end
    int64_t needed = 0;
  };
  static bool is_high(size_t way, Sort sort) { return way == 1 && sort == Sort::kSecond; }

  std::array<ArenaWay, 2> ways_;
  bool reserved_is_longer() const {
    return reserved_.length > length_ && ways_[reserved_.way].needed <= reserved_.length;
  }

  size_t way_ = 0;
  int64_t length_ = 0, live_ = 0;
  Shape reserved_;
};

}  // namespace fsdp::util
