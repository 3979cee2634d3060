#pragma once

// Which parts of a stretch of memory are free; on numbers alone, so that a plan can follow what memory does.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace fsdp::util {

/// Which parts of [begin, end) are free. Best fit, of equal ones the first; neighbours are joined.
class FreeRanges {
 public:
  FreeRanges(int64_t begin, int64_t end) : free_{{begin, end - begin}} {}
  /// Nothing when there is no such part.
  std::optional<int64_t> take(int64_t bytes, int64_t alignment);
  void give_back(int64_t offset, int64_t bytes);
  /// Where the last part begins that is free.
  int64_t last_begin() const { return free_.rbegin()->first; }

 private:
  std::map<int64_t, int64_t> free_;  ///< length by offset
};

/// Places of buffers in one stretch of memory. While it is too short for one, that is outside of it, in
/// memory of its own. Two ways of placing are followed at once, and the one that needs less is taken where
/// the stretch grows: all buffers from the beginning on, good where all are alike; or two sorts, whose sizes
/// are alike within the sort, from the two ends, which leaves fewer holes otherwise.
class Arena {
 public:
  static constexpr int64_t kAlignment = 64;  ///< of every place; a cache line

  enum class Sort { kFirst, kSecond };
  struct Place {
    Sort sort = Sort::kFirst;
    int64_t bytes = 0;
    std::array<int64_t, 2> distances = {};  ///< by way of placing: from the end that its sort has
    bool is_outside = false;
    int64_t offset = 0;  ///< from the beginning, unless it is outside
  };

  /// How long it is, and which way of placing it follows.
  struct Shape {
    int64_t length = 0;
    size_t way = 0;
  };

  Place take(int64_t bytes, Sort sort);
  void give_back(const Place& place);

  Shape shape() const { return {length_, way_}; }
  /// Lets it grow to that at once, for who knows what will be taken.
  void reserve(const Shape& shape) { reserved_ = shape; }

  /// Places that are taken.
  int64_t live() const { return live_; }
  int64_t length() const { return length_; }
  /// The length with which no place would have been outside, or the reserved one, if that is more than it
  /// has.
  std::optional<int64_t> longer() const;
  /// Only when nothing is taken: takes that length, or none.
  void grow();
  void clear();

 private:
  static constexpr int64_t kEndless = int64_t{1} << 62;
  struct Way {
    FreeRanges low{0, kEndless}, high{0, kEndless};  ///< by distance from the end
    int64_t needed = 0;
  };
  static bool is_high(size_t way, Sort sort) { return way == 1 && sort == Sort::kSecond; }

  std::array<Way, 2> ways_;
  bool reserved_is_longer() const {
    return reserved_.length > length_ && ways_[reserved_.way].needed <= reserved_.length;
  }

  size_t way_ = 0;
  int64_t length_ = 0, live_ = 0;
  Shape reserved_;
};

}  // namespace fsdp::util
