#include "kernels/block_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>

#include "kernels/cpu/packing.h"
#include "util/error.h"
#include "util/parallel.h"

namespace fsdp::kernels {
namespace {

// What one thread works on at a time; with the packed factors it fits into a second-level cache of 1 MiB and
// more.
constexpr int64_t kRows = 512;     ///< of the result, where the left factor is packed
constexpr int64_t kColumns = 128;  ///< of the result
constexpr int64_t kDepth = 512;    ///< of a row and a column of the factors
constexpr int64_t kSmallRows = 64;
constexpr int64_t kMultiple = 16;  ///< of which the sizes of equal parts are

/// Memory for packed factors that a thread keeps.
class Scratch {
 public:
  template <typename T>
  static T* left() {
    return reinterpret_cast<T*>(of_thread().memory_.get());
  }
  template <typename T>
  static T* right() {
    return reinterpret_cast<T*>(of_thread().memory_.get() + kRows * kDepth * sizeof(float));
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  static Scratch& of_thread() {
    static thread_local Scratch scratch;
    return scratch;
  }

  std::unique_ptr<std::byte, Free> memory_{
      static_cast<std::byte*>(::operator new((kRows + kColumns) * kDepth * sizeof(float), kAlignment))};
};

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// A size of parts of `whole` that are about equal and at most `most`.
int64_t equal_part(int64_t whole, int64_t most) {
  const int64_t parts = (whole + most - 1) / most;
  return std::min(most, rounded_up((whole + parts - 1) / parts, kMultiple));
}

/// A factor in memory, [rows, columns] or, where `transposed`, stored as [columns, rows].
template <typename T>
struct Stored {
  const T* data;
  int64_t stride;
  bool transposed;

  /// A single row or column may be taken as either.
  Stored(const at::Tensor& x, bool rather_transposed)
      : data(static_cast<const T*>(x.const_data_ptr())),
        stride(0),
        transposed(rather_transposed ? x.stride(0) == 1 : x.stride(1) != 1) {
    FSDP_CHECK(x.stride(1) == 1 || x.stride(0) == 1, x.sizes(), " ", x.strides());
    stride = transposed ? x.stride(1) : x.stride(0);
  }
  const T* at(int64_t row, int64_t column) const {
    return transposed ? data + column * stride + row : data + row * stride + column;
  }
};

template <typename T>
class BlockProduct {
 public:
  BlockProduct(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds)
      : a_(a, /*rather_transposed=*/kPairs > 1),  // packed then, so that it may be padded
        b_(b, /*rather_transposed=*/false),
        c_(c.data_ptr<float>()),
        shape_{.m = a.size(0), .n = b.size(1), .k = a.size(1)},
        adds_(adds),
        packing_(*cpu::packing(std::is_same_v<T, float> ? cpu::Element::kFloat : cpu::Element::kBFloat16)) {
    FSDP_CHECK(kPairs == 1 || (a_.transposed && !b_.transposed) || shape_.k % 2 == 0,
               "in bf16 k = ", shape_.k);
  }

  void run() {
    // Rows that need no packing may be as many as there are, so that the right factor is packed once.
    const int64_t fair = std::max(rounded_up(shape_.m / at::get_num_threads(), kMultiple), kMultiple);
    const int64_t rows = equal_part(shape_.m, a_.transposed ? std::min(kRows, fair) : fair);
    const int64_t work = std::max<int64_t>(1, rows * shape_.n * shape_.k);
    util::parallel_for(0, (shape_.m + rows - 1) / rows, std::max<int64_t>(1, kLeastWork / work),
                       [&](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i)
                           rows_of(i * rows, std::min(rows, shape_.m - i * rows));
                         end_small_products();
                       });
  }

 private:
  static constexpr int64_t kPairs = std::is_same_v<T, float> ? 1 : 2;  ///< of K that are packed together

  void rows_of(int64_t first, int64_t rows) const {
    const int64_t depth = equal_part(shape_.k, kDepth);
    for (int64_t k = 0; k < shape_.k; k += depth) {
      const int64_t count = std::min(depth, shape_.k - k), padded = rounded_up(count, kPairs);
      SmallFactor<T> left{a_.at(first, k), a_.stride};
      if (a_.transposed) {
        T* packed = Scratch::left<T>();
        packing_.transposed({.data = left.data, .stride = a_.stride, .rows = count, .width = rows}, padded,
                            packed);
        left = {packed, padded};
      }
      const bool adds = adds_ || k > 0;
      for (int64_t column = 0; column < shape_.n; column += kColumns) {
        const int64_t columns = std::min(kColumns, shape_.n - column);
        const T* right = pack_right(k, count, padded, column, columns);
        for (int64_t row = 0; row < rows; row += kSmallRows) {
          small_product<T>({std::min(kSmallRows, rows - row), columns, padded},
                           {left.data + row * left.stride, left.stride}, {right, columns}, adds,
                           c_ + (first + row) * shape_.n + column, shape_.n);
        }
      }
    }
  }

  const T* pack_right(int64_t k, int64_t count, int64_t padded, int64_t column, int64_t columns) const {
    T* packed = Scratch::right<T>();
    const T* from = b_.at(k, column);
    if (b_.transposed) {
      packing_.columns({.data = from, .stride = b_.stride, .rows = columns, .width = count}, packed);
    } else {
      packing_.rows({.data = from, .stride = b_.stride, .rows = count, .width = columns}, padded, packed);
    }
    return packed;
  }

  Stored<T> a_, b_;
  float* c_;
  SmallShape shape_;
  bool adds_;
  const cpu::Packing& packing_;
};

bool multiplies_bf16() {
  const std::array<at::BFloat16, 4> ones = {1, 1, 1, 1};
  std::array<float, 4> result{};
  try {
    small_product<at::BFloat16>({2, 2, 2}, {ones.data(), 2}, {ones.data(), 2}, false, result.data(), 2);
  } catch (const std::exception&) {
    return false;
  }
  end_small_products();
  return true;
}

}  // namespace

bool has_small_products(at::ScalarType type) {
  if (type == at::kFloat) return cpu::packing(cpu::Element::kFloat) != nullptr;
  if (type != at::kBFloat16 || cpu::packing(cpu::Element::kBFloat16) == nullptr) return false;
  // The environment may keep oneDNN from using what the CPU has.
  static const bool is_allowed = multiplies_bf16();
  return is_allowed;
}

void multiply_into(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds) {
  FSDP_CHECK(has_small_products(a.scalar_type()) && b.scalar_type() == a.scalar_type() &&
                 c.scalar_type() == at::kFloat && c.is_contiguous() && a.size(1) == b.size(0) &&
                 c.size(0) == a.size(0) && c.size(1) == b.size(1),
             c.sizes(), a.sizes(), b.sizes());
  if (c.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!adds) c.zero_();
    return;
  }
  if (a.scalar_type() == at::kFloat) {
    BlockProduct<float>(c, a, b, adds).run();
  } else {
    BlockProduct<at::BFloat16>(c, a, b, adds).run();
  }
}

}  // namespace fsdp::kernels
