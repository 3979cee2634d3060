#pragma once

// How kernels share rows out, without libtorch, so that plans can tell the memory of it.

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels {

/// Elements that one thread takes at least.
inline constexpr int64_t kGrain = 1 << 15;

/// Rows cut into parts, each of which has its own sums over rows; these are added up in their order. The cuts
/// depend on the sizes alone, so that sums do not depend on the number of threads.
class RowParts {
 public:
  RowParts(int64_t rows, int64_t width) : rows_(rows), width_(width) {
    const int64_t wanted = std::clamp<int64_t>(rows * width / kGrain, 1, kMost);
    each_ = std::max<int64_t>(1, (rows + wanted - 1) / wanted);
    count_ = std::max<int64_t>(1, (rows + each_ - 1) / each_);
  }
  int64_t count() const { return count_; }
  int64_t first(int64_t part) const { return part * each_; }
  int64_t rows(int64_t part) const { return std::min(each_, rows_ - first(part)); }
  int64_t width() const { return width_; }

  /// Of the sums, `vectors` a part, in fp32.
  int64_t bytes(int64_t vectors) const {
    return static_cast<int64_t>(sizeof(float)) * count_ * vectors * width_;
  }

 private:
  static constexpr int64_t kMost = 32;
  int64_t rows_, width_, each_, count_;
};

}  // namespace fsdp::kernels
