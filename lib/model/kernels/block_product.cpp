#include "model/kernels/block_product.h"

#include <ATen/Parallel.h>

#include <array>
#include <exception>
#include <vector>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/matrix_units.h"
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

// Elements of the result of widened factors that a thread keeps in fp32 until they are complete.
constexpr int64_t kKeptResult = 1 << 20;

thread_local FactorMemory left_scratch, right_scratch, result_scratch;

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
  void* c;
  int64_t rows;
  bool adds, is_rounded;

  int64_t units() const { return rounded_up(rows, kMultiple) / kMultiple; }
};

/// A block of rows of a term's result.
template <typename T>
struct RowBlock {
  const ProductTerm<T>* term;
  int64_t first, rows;
};

/// Some columns of a block's result while they are computed.
struct ResultColumns {
  float* data;
  int64_t stride;
  bool adds;
};

/// A range of rows of the right factor, which are columns of each left factor.
struct FactorSlice {
  int64_t first, count, padded;
};

/// The products of several terms, whose rows are divided among threads as if stacked. Factors of T are packed
/// as P.
template <typename T, typename P>
class BlockProduct {
 public:
  BlockProduct(std::span<const ProductOf> products, const at::Tensor& b)
      : b_(b, /*rather_transposed=*/false),
        n_(b.size(1)),
        k_(b.size(0)),
        packing_(kWidens                    ? *cpu::widening()
                 : std::is_same_v<T, float> ? *cpu::packing(cpu::Element::kFloat)
                                            : *cpu::packing(cpu::Element::kBFloat16)) {
    for (const ProductOf& p : products) {
      // In bf16, packing is preferred, because it adds padding.
      terms_.push_back({.a = StoredFactor<T>(p.a, /*rather_transposed=*/kPairs > 1),
                        .c = p.c.data_ptr(),
                        .rows = p.a.size(0),
                        .adds = p.adds,
                        .is_rounded = p.c.scalar_type() != at::kFloat});
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
  static constexpr int64_t kPairs = std::is_same_v<P, float> ? 1 : 2;
  static constexpr bool kWidens = !std::is_same_v<T, P>;

  /// Returns the blocks of units [begin, end). Blocks that need no packing have no limit on their size.
  std::vector<RowBlock<T>> blocks_of(int64_t begin, int64_t end) const {
    std::vector<RowBlock<T>> blocks;
    int64_t before = 0;
    for (const ProductTerm<T>& term : terms_) {
      const int64_t first = std::max<int64_t>(begin - before, 0) * kMultiple;
      const int64_t last = std::min((end - before) * kMultiple, term.rows);
      before += term.units();
      if (first >= last) continue;
      const int64_t most = term.a.transposed || kWidens ? equal_part(last - first, kRows) : last - first;
      for (int64_t row = first; row < last; row += most) {
        blocks.push_back({.term = &term, .first = row, .rows = std::min(most, last - row)});
      }
    }
    return blocks;
  }

  void multiply(const std::vector<RowBlock<T>>& blocks) const {
    const bool keeps = blocks.size() > 1;
    int64_t rounded_rows = 0;
    for (const RowBlock<T>& block : blocks) rounded_rows += block.term->is_rounded ? block.rows : 0;
    const int64_t depth = equal_part(k_, kBlockDepth);
    int64_t kept = keeps ? equal_part(n_, kKeptBlockColumns) : n_;
    if (rounded_rows > 0) {
      const int64_t most =
          std::max(kResultColumns, kKeptResult / rounded_rows / kResultColumns * kResultColumns);
      kept = std::min(kept, equal_part(n_, most));
    }
    P* packed = right_scratch.of<P>((keeps ? kept : kResultColumns) * rounded_up(depth, kPairs));
    for (int64_t begin = 0; begin < n_; begin += kept) {
      const int64_t end = std::min(begin + kept, n_);
      const std::vector<ResultColumns> results = begin_results(blocks, rounded_rows, begin, end);
      for (int64_t k = 0; k < k_; k += depth) {
        const int64_t count = std::min(depth, k_ - k);
        const FactorSlice slice{.first = k, .count = count, .padded = rounded_up(count, kPairs)};
        for (size_t i = 0; i < blocks.size(); ++i) {
          const SmallFactor<P> left = left_of(blocks[i], slice);
          for (int64_t column = begin; column < end; column += kResultColumns) {
            const int64_t columns = std::min(kResultColumns, end - column);
            P* right = packed + (keeps ? (column - begin) * slice.padded : 0);
            if (i == 0) pack_right(slice, column, columns, right);
            multiply(blocks[i].rows, slice, left, {right, columns}, results[i], column - begin);
          }
        }
      }
      end_results(blocks, results, begin, end);
    }
  }

  /// Returns where columns [begin, end) of the blocks' results are computed: in place or, if they are to be
  /// rounded, in memory of this thread.
  std::vector<ResultColumns> begin_results(const std::vector<RowBlock<T>>& blocks, int64_t rounded_rows,
                                           int64_t begin, int64_t end) const {
    std::vector<ResultColumns> results;
    float* memory = rounded_rows > 0 ? result_scratch.of<float>(rounded_rows * (end - begin)) : nullptr;
    for (const RowBlock<T>& block : blocks) {
      const int64_t offset = block.first * n_ + begin;
      if (!block.term->is_rounded) {
        results.push_back({static_cast<float*>(block.term->c) + offset, n_, block.term->adds});
        continue;
      }
      results.push_back({memory, end - begin, block.term->adds});
      if (block.term->adds) {
        cpu::widening()->rows({.data = static_cast<const at::BFloat16*>(block.term->c) + offset,
                               .stride = n_,
                               .rows = block.rows,
                               .width = end - begin},
                              block.rows, memory);
      }
      memory += block.rows * (end - begin);
    }
    return results;
  }

  void end_results(const std::vector<RowBlock<T>>& blocks, const std::vector<ResultColumns>& results,
                   int64_t begin, int64_t end) const {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!blocks[i].term->is_rounded) continue;
      uint16_t* to = static_cast<uint16_t*>(blocks[i].term->c) + blocks[i].first * n_ + begin;
      for (int64_t row = 0; row < blocks[i].rows; ++row) {
        cpu::round_to_bfloat16(results[i].data + row * results[i].stride, to + row * n_, end - begin);
      }
    }
  }

  SmallFactor<P> left_of(const RowBlock<T>& block, const FactorSlice& slice) const {
    const StoredFactor<T>& a = block.term->a;
    const T* data = a.at(block.first, slice.first);
    if constexpr (!kWidens) {
      if (!a.transposed) return {data, a.stride};
    }
    P* packed = left_scratch.of<P>(block.rows * slice.padded);
    if (a.transposed) {
      packing_.transposed({.data = data, .stride = a.stride, .rows = slice.count, .width = block.rows},
                          slice.padded, packed);
    } else {
      packing_.rows({.data = data, .stride = a.stride, .rows = block.rows, .width = slice.count}, block.rows,
                    packed);
    }
    return {packed, slice.padded};
  }

  void pack_right(const FactorSlice& slice, int64_t column, int64_t columns, P* packed) const {
    const T* from = b_.at(slice.first, column);
    if (b_.transposed) {
      packing_.columns({.data = from, .stride = b_.stride, .rows = columns, .width = slice.count}, packed);
    } else {
      packing_.rows({.data = from, .stride = b_.stride, .rows = slice.count, .width = columns}, slice.padded,
                    packed);
    }
  }

  /// Multiplies a block of `rows` rows. right.stride is the number of packed columns, `column` the first of
  /// them in `to`.
  void multiply(int64_t rows, const FactorSlice& slice, const SmallFactor<P>& left,
                const SmallFactor<P>& right, const ResultColumns& to, int64_t column) const {
    for (int64_t row = 0; row < rows; row += kSmallRows) {
      small_product<P>({std::min(kSmallRows, rows - row), right.stride, slice.padded},
                       {left.data + row * left.stride, left.stride}, right, to.adds || slice.first > 0,
                       to.data + row * to.stride + column, to.stride);
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
  return (type == at::kFloat || type == at::kBFloat16) && cpu::packing(cpu::Element::kFloat) != nullptr;
}

bool has_bf16_instructions() {
  if (cpu::packing(cpu::Element::kBFloat16) == nullptr) return false;
  // The environment may disable instructions of oneDNN that the CPU supports.
  static const bool is_allowed = multiplies_bf16();
  return is_allowed;
}

bool widens_bf16() {
  static const bool is_slow = util::is_intel() && !util::has_matrix_unit();
  return has_small_products(at::kBFloat16) && (is_slow || !has_bf16_instructions());
}

void multiply_all_into(std::span<const ProductOf> products, const at::Tensor& b) {
  for (const auto& [c, a, adds] : products) {
    FSDP_CHECK((b.is_meta() || has_small_products(a.scalar_type())) && b.scalar_type() == a.scalar_type() &&
                   (c.scalar_type() == at::kFloat || (widens_bf16() && c.scalar_type() == b.scalar_type())) &&
                   c.is_contiguous() && a.size(1) == b.size(0) && c.size(0) == a.size(0) &&
                   c.size(1) == b.size(1),
               c.sizes(), a.sizes(), b.sizes());
    if (b.size(0) == 0 && !adds) c.zero_();
  }
  if (b.numel() == 0 || products.empty()) return;
  if (b.is_meta()) {
    for (const ProductOf& each : products) note_product(each.a.size(0), b.size(1), b.size(0));
    return;
  }
  if (b.scalar_type() == at::kFloat) {
    BlockProduct<float, float>(products, b).run();
  } else if (widens_bf16()) {
    BlockProduct<at::BFloat16, float>(products, b).run();
  } else {
    BlockProduct<at::BFloat16, at::BFloat16>(products, b).run();
  }
}

}  // namespace fsdp::kernels
