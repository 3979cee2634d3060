#pragma once

// How kernels share rows out.

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels {

/// Elements that one thread of the CPU takes at least.
inline constexpr int64_t kGrain = 1 << 15;

/// Rows cut into parts, each of which has its own sums over rows; these are added up in their order. The cuts
/// depend on the sizes alone, so that sums do not depend on the number of threads or multiprocessors.
class RowParts {
 public:
  struct Cut {
    int64_t grain;  ///< elements of a part, at least
    int64_t most;   ///< parts
  };
  static constexpr Cut kCpu{kGrain, 32};
  /// Each part is a block of threads; so many are at work at once on a large GPU.
  static constexpr Cut kDevice{1 << 13, 512};

  RowParts(int64_t rows, int64_t width, const Cut& cut = kCpu) : rows_(rows), width_(width) {
    const int64_t wanted = std::clamp<int64_t>(rows * width / cut.grain, 1, cut.most);
    each_ = std::max<int64_t>(1, (rows + wanted - 1) / wanted);
    count_ = std::max<int64_t>(1, (rows + each_ - 1) / each_);
  }
  int64_t count() const { return count_; }
  int64_t first(int64_t part) const { return part * each_; }
  int64_t rows(int64_t part) const { return std::min(each_, rows_ - first(part)); }
  /// Rows of all parts but the last, which may have fewer.
  int64_t each() const { return each_; }
  int64_t all_rows() const { return rows_; }
  int64_t width() const { return width_; }

  /// Of the sums, `vectors` a part, in fp32.
  int64_t bytes(int64_t vectors) const {
    return static_cast<int64_t>(sizeof(float)) * count_ * vectors * width_;
  }

 private:
  int64_t rows_, width_, each_, count_;
};

}  // namespace fsdp::kernels
