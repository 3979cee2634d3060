#include "model/kernels/block_product.h"

#include <ATen/Parallel.h>

#include <array>
#include <exception>
#include <vector>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "model/kernels/meta.h"

namespace fsdp::kernels {
namespace {

// Sizes of one thread's block, which with the packed factors fits into a second-level cache of 1 MiB.
constexpr int64_t kRows = 512;           ///< rows of the result, if the left factor is packed
constexpr int64_t kResultColumns = 128;  ///< columns of the result
constexpr int64_t kBlockDepth = 512;     ///< elements of a row and a column of the factors
constexpr int64_t kSmallRows = 64;

// Columns of the right factor that stay packed for the next block, if there are several blocks of rows.
constexpr int64_t kKeptBlockColumns = 2048;

thread_local FactorMemory left_scratch, right_scratch;

/// A factor in memory, [rows, columns] or, if `transposed`, stored as [columns, rows].
template <typename T>
struct StoredFactor {
  const T* data;
  int64_t stride;
  bool transposed;

  /// A single row or column has both forms; `rather_transposed` decides.
  StoredFactor(const at::Tensor& x, bool rather_transposed)
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

/// A left factor and its result.
template <typename T>
struct ProductTerm {
  StoredFactor<T> a;
  float* c;
  int64_t rows;
  bool adds;

  int64_t units() const { return rounded_up(rows, kMultiple) / kMultiple; }
};

/// A block of rows of a term's result.
template <typename T>
struct RowBlock {
  const ProductTerm<T>* term;
  int64_t first, rows;
};

/// A range of rows of the right factor, which are columns of each left factor.
struct FactorSlice {
  int64_t first, count, padded;
};

/// The products of several terms, whose rows are divided among threads as if stacked.
template <typename T>
class BlockProduct {
 public:
  BlockProduct(std::span<const ProductOf> products, const at::Tensor& b)
      : b_(b, /*rather_transposed=*/false),
        n_(b.size(1)),
        k_(b.size(0)),
        packing_(*cpu::packing(std::is_same_v<T, float> ? cpu::Element::kFloat : cpu::Element::kBFloat16)) {
    for (const ProductOf& p : products) {
      // In bf16, packing is preferred, because it adds padding.
      terms_.push_back({.a = StoredFactor<T>(p.a, /*rather_transposed=*/kPairs > 1),
                        .c = p.c.data_ptr<float>(),
                        .rows = p.a.size(0),
                        .adds = p.adds});
      FSDP_CHECK(kPairs == 1 || (terms_.back().a.transposed && !b_.transposed) || k_ % 2 == 0,
                 "in bf16 k = ", k_);
    }
  }

  void run() {
    int64_t units = 0;
    for (const ProductTerm<T>& term : terms_) units += term.units();
    const int64_t work = std::max<int64_t>(1, kMultiple * n_ * k_);
    util::parallel_for(0, units, std::max<int64_t>(1, kLeastWork / work), [&](int64_t begin, int64_t end) {
      multiply(blocks_of(begin, end));
      end_small_products();
    });
  }

 private:
  /// Number of neighbours along K that are packed together.
  static constexpr int64_t kPairs = std::is_same_v<T, float> ? 1 : 2;

  /// Returns the blocks of units [begin, end). Blocks that need no packing have no limit on their size.
  std::vector<RowBlock<T>> blocks_of(int64_t begin, int64_t end) const {
    std::vector<RowBlock<T>> blocks;
    int64_t before = 0;
    for (const ProductTerm<T>& term : terms_) {
      const int64_t first = std::max<int64_t>(begin - before, 0) * kMultiple;
      const int64_t last = std::min((end - before) * kMultiple, term.rows);
      before += term.units();
      if (first >= last) continue;
      const int64_t most = term.a.transposed ? equal_part(last - first, kRows) : last - first;
      for (int64_t row = first; row < last; row += most) {
        blocks.push_back({.term = &term, .first = row, .rows = std::min(most, last - row)});
      }
    }
    return blocks;
  }

  void multiply(const std::vector<RowBlock<T>>& blocks) const {
    const bool keeps = blocks.size() > 1;
    const int64_t depth = equal_part(k_, kBlockDepth), kept = keeps ? equal_part(n_, kKeptBlockColumns) : n_;
    T* packed = right_scratch.of<T>((keeps ? kept : kResultColumns) * rounded_up(depth, kPairs));
    for (int64_t k = 0; k < k_; k += depth) {
      const int64_t count = std::min(depth, k_ - k);
      const FactorSlice slice{.first = k, .count = count, .padded = rounded_up(count, kPairs)};
      for (int64_t begin = 0; begin < n_; begin += kept) {
        const int64_t end = std::min(begin + kept, n_);
        for (const RowBlock<T>& block : blocks) {
          const SmallFactor<T> left = left_of(block, slice);
          for (int64_t column = begin; column < end; column += kResultColumns) {
            const int64_t columns = std::min(kResultColumns, end - column);
            T* right = packed + (keeps ? (column - begin) * slice.padded : 0);
            if (&block == &blocks.front()) pack_right(slice, column, columns, right);
            multiply(block, slice, left, {right, columns}, column);
          }
        }
      }
    }
  }

  SmallFactor<T> left_of(const RowBlock<T>& block, const FactorSlice& slice) const {
    const StoredFactor<T>& a = block.term->a;
    const T* data = a.at(block.first, slice.first);
    if (!a.transposed) return {data, a.stride};
    T* packed = left_scratch.of<T>(block.rows * slice.padded);
    packing_.transposed({.data = data, .stride = a.stride, .rows = slice.count, .width = block.rows},
                        slice.padded, packed);
    return {packed, slice.padded};
  }

  void pack_right(const FactorSlice& slice, int64_t column, int64_t columns, T* packed) const {
    const T* from = b_.at(slice.first, column);
    if (b_.transposed) {
      packing_.columns({.data = from, .stride = b_.stride, .rows = columns, .width = slice.count}, packed);
    } else {
      packing_.rows({.data = from, .stride = b_.stride, .rows = slice.count, .width = columns}, slice.padded,
                    packed);
    }
  }

  /// Multiplies a block. right.stride is the number of packed columns.
  void multiply(const RowBlock<T>& block, const FactorSlice& slice, const SmallFactor<T>& left,
                const SmallFactor<T>& right, int64_t column) const {
    const bool adds = block.term->adds || slice.first > 0;
    for (int64_t row = 0; row < block.rows; row += kSmallRows) {
      small_product<T>({std::min(kSmallRows, block.rows - row), right.stride, slice.padded},
                       {left.data + row * left.stride, left.stride}, right, adds,
                       block.term->c + (block.first + row) * n_ + column, n_);
    }
  }

  std::vector<ProductTerm<T>> terms_;
  StoredFactor<T> b_;
  int64_t n_, k_;
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
  // The environment may disable instructions of oneDNN that the CPU supports.
  static const bool is_allowed = multiplies_bf16();
  return is_allowed;
}

void multiply_all_into(std::span<const ProductOf> products, const at::Tensor& b) {
  for (const auto& [c, a, adds] : products) {
    FSDP_CHECK((b.is_meta() || has_small_products(a.scalar_type())) && b.scalar_type() == a.scalar_type() &&
                   c.scalar_type() == at::kFloat && c.is_contiguous() && a.size(1) == b.size(0) &&
                   c.size(0) == a.size(0) && c.size(1) == b.size(1),
               c.sizes(), a.sizes(), b.sizes());
    if (b.size(0) == 0 && !adds) c.zero_();
  }
  if (b.numel() == 0 || products.empty()) return;
  if (b.is_meta()) {
    for (const ProductOf& each : products) note_product(each.a.size(0), b.size(1), b.size(0));
    return;
  }
  if (b.scalar_type() == at::kFloat) {
    BlockProduct<float>(products, b).run();
  } else {
    BlockProduct<at::BFloat16>(products, b).run();
  }
}

}  // namespace fsdp::kernels
