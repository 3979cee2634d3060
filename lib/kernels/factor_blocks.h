#pragma once

// What products in blocks share (block_product.cpp, tile_product.cpp): memory for packed factors, and sizes
// of blocks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace fsdp::kernels {

/// Memory for a packed factor that a thread keeps, and that grows with what is asked for.
class Scratch {
 public:
  template <typename T>
  T* of(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;  // also if there is no room
      memory_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlignment)));
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  int64_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

inline constexpr int64_t kMultiple = 16;  ///< of which the sizes of equal parts are

constexpr int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// A size of parts of `whole` that are about equal and at most `most`.
constexpr int64_t equal_part(int64_t whole, int64_t most, int64_t multiple = kMultiple) {
  const int64_t parts = (whole + most - 1) / most;
  return std::min(most, rounded_up((whole + parts - 1) / parts, multiple));
}

}  // namespace fsdp::kernels
