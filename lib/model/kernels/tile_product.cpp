#include "model/kernels/tile_product.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/tensor/parallel.h"
#include "base/util/error.h"
#include "base/util/matrix_units.h"
#include "model/kernels/block_product.h"
#include "model/kernels/meta.h"
#include "model/kernels/tile_blocks.h"

namespace fsdp::kernels {
namespace {

// Sizes of a thread's blocks of both factors, which fit a second-level cache of 2 MiB with their results.
constexpr int64_t kDepth = 4096;
constexpr int64_t kDepthOfParts = 512;
constexpr int64_t kLeftBytes = 384 << 10;
constexpr int64_t kRightBytes = 1024 << 10;
constexpr int64_t kRightBytesOfParts = 768 << 10;
constexpr int64_t kColumns = 1024;  ///< limit on the columns of a block

// Size of a group of blocks, after which the next one begins.
constexpr int64_t kGroupBytes = 3072 << 10;                  ///< bytes of the left factor
constexpr int64_t kSummedRows = 1024, kSummedColumns = 512;  ///< size of the result, if sums are rounded

std::atomic<int> parts_of_float32 = 3;

thread_local FactorMemory tile_left_scratch, tile_right_scratch, tile_sum_scratch, tile_strip_scratch;

/// The products of all factors: left factors are stacked, right factors are side by side.
class TiledProduct {
 public:
  explicit TiledProduct(const TileProducts& products)
      : results_(products.results),
        parts_(products.terms.front().rights.front().scalar_type() == at::kFloat ? float32_parts() : 1),
        rounds_(results_.front().c.scalar_type() != at::kFloat) {
    for (const TileProducts::Term& term : products.terms) {
      if (term.lefts.front().size(1) == 0) continue;
      TileTerm& added = terms_.emplace_back();
      for (const at::Tensor& left : term.lefts)
        added.lefts.push_back(tile_source(left, cpu::TileSide::kLeft));
      for (const at::Tensor& right : term.rights)
        added.rights.push_back(tile_source(right, cpu::TileSide::kRight));
    }
    make_slices();
  }

  bool is_empty() const { return terms_.empty(); }

  void run() {
    int64_t units = 0, columns = 0;
    for (const cpu::TileSource& left : terms_.front().lefts) units += units_of(left);
    for (const cpu::TileSource& right : terms_.front().rights) columns += right.across;
    const int64_t work = std::max<int64_t>(1, kMultiple * columns * total_depth());
    util::parallel_for(0, units, std::max<int64_t>(1, kLeastWork / work), [&](int64_t begin, int64_t end) {
      const std::vector<TileGroup> column_groups = columns_in_groups();
      for (const TileGroup& rows : rows_in_groups(begin, end)) {
        for (const TileGroup& group : column_groups) multiply(rows, group);
      }
    });
  }

 private:
  struct TileTerm {
    std::vector<cpu::TileSource> lefts, rights;
    int64_t depth() const { return lefts.front().depth; }
  };

  /// A range of the depth of a term. `before` is the depth of the slice's earlier parts.
  struct DepthRange {
    size_t term;
    TileRange range;
    int64_t before;
  };
  /// Parts that are multiplied together.
  struct DepthSlice {
    std::vector<DepthRange> parts;
    int64_t depth = 0;  ///< depth in whole tiles
  };

  void make_slices() {
    const int64_t most = parts_ == 1 ? kDepth : kDepthOfParts;
    for (size_t term = 0; term < terms_.size(); ++term) {
      const int64_t k = terms_[term].depth(), part = equal_part(k, most, cpu::kTileDepth);
      for (int64_t first = 0; first < k; first += part) {
        const int64_t count = std::min(part, k - first), depth = rounded_up(count, cpu::kTileDepth);
        // Exceeding the limit by a term of few tiles costs less than another slice.
        const int64_t limit = most + (depth <= most / 8 ? most / 8 : 0);
        if (slices_.empty() || slices_.back().depth + depth > limit) slices_.emplace_back();
        slices_.back().parts.push_back({term, {first, count}, slices_.back().depth});
        slices_.back().depth += depth;
      }
    }
    for (const DepthSlice& slice : slices_) depth_ = std::max(depth_, slice.depth);
  }

  int64_t total_depth() const {
    int64_t total = 0;
    for (const TileTerm& term : terms_) total += term.depth();
    return total;
  }

  static int64_t units_of(const cpu::TileSource& left) {
    return rounded_up(left.across, kMultiple) / kMultiple;
  }

  /// Returns the number of rows or columns of approximately `bytes` bytes, in pairs of tiles. Sums in a
  /// partial tile are rounded in another order, so only the ends of results may have partial tiles, wherever
  /// a thread begins.
  int64_t across_of(int64_t bytes) const {
    constexpr int64_t kPair = 2 * cpu::kTileSide;
    return std::max(bytes / (2 * depth_ * parts_) / kPair, int64_t{1}) * kPair;
  }
  int64_t columns_of_a_block() const {
    return std::min(across_of(parts_ == 1 ? kRightBytes : kRightBytesOfParts), kColumns);
  }

  bool keeps_sums() const { return rounds_ && slices_.size() > 1; }

  /// Returns groups of the units [begin, end) of rows. Rows in a partial tile have a block of their own,
  /// because whole tiles may be read in place.
  std::vector<TileGroup> rows_in_groups(int64_t begin, int64_t end) const {
    const int64_t most = keeps_sums() ? kSummedRows : across_of(kGroupBytes), across = across_of(kLeftBytes);
    std::vector<TileGroup> groups(1);
    int64_t before = 0;
    for (size_t left = 0; left < terms_.front().lefts.size(); ++left) {
      const cpu::TileSource& source = terms_.front().lefts[left];
      const int64_t first = std::max<int64_t>(begin - before, 0) * kMultiple;
      const int64_t last = std::min((end - before) * kMultiple, source.across);
      before += units_of(source);
      const int64_t whole = parts_ == 1 ? last / cpu::kTileSide * cpu::kTileSide : last;
      if (first < whole) append_blocks(groups, left, {first, whole - first}, across, most);
      if (const int64_t rest = std::max(first, whole); rest < last) {
        append_blocks(groups, left, {rest, last - rest}, across, most);
      }
    }
    return groups;
  }

  std::vector<TileGroup> columns_in_groups() const {
    std::vector<TileGroup> groups(1);
    const int64_t most = keeps_sums() ? kSummedColumns : std::numeric_limits<int64_t>::max();
    const std::vector<cpu::TileSource>& rights = terms_.front().rights;
    for (size_t right = 0; right < rights.size(); ++right) {
      append_blocks(groups, right, {0, rights[right].across}, columns_of_a_block(), most);
    }
    return groups;
  }

  cpu::TileSource left_part(const TileBlock& block, const DepthRange& part) const {
    return tile_part(terms_[part.term].lefts[block.factor], block.range, part.range);
  }
  cpu::TileSource right_part(const TileBlock& block, const DepthRange& part) const {
    return tile_part(terms_[part.term].rights[block.factor], block.range, part.range);
  }

  /// Whether the part has a factor for these columns.
  bool adds_to(const DepthRange& part, const TileBlock& columns) const {
    return terms_[part.term].rights[columns.factor].data != nullptr;
  }

  /// Returns the position at which a part of a block of rows or columns is (or would be) packed.
  uint16_t* place_of(uint16_t* packed, const DepthRange& part, int64_t all_sums, int64_t sums) const {
    return packed + cpu::tiled_elements(all_sums, part.before, parts_) +
           cpu::tiled_elements(sums, part.range.count, parts_);
  }

  /// A group's rows and columns, and this thread's memory for them.
  struct GroupWork {
    const TileGroup &rows, &columns;
    uint16_t *left, *right;
    float* sums;  ///< [rows.sums, columns.sums], or null
  };

  void multiply(const TileGroup& rows, const TileGroup& columns) const {
    const bool packs_rows = std::any_of(rows.blocks.begin(), rows.blocks.end(),
                                        [&](const TileBlock& block) { return !is_read_in_place(block); });
    const int64_t left = packs_rows ? cpu::tiled_elements(rows.sums, depth_, parts_) : 0;
    const int64_t right = cpu::tiled_elements(columns_of_a_block(), depth_, parts_);
    const GroupWork work{
        .rows = rows,
        .columns = columns,
        .left = tile_left_scratch.of<uint16_t>(left),
        .right = tile_right_scratch.of<uint16_t>(right),
        .sums = keeps_sums() ? tile_sum_scratch.of<float>(rows.sums * columns.sums) : nullptr};
    for (const DepthSlice& slice : slices_) {
      for (const TileBlock& block : rows.blocks) pack_left(work, slice, block);
      for (const TileBlock& block : columns.blocks) {
        pack_right(work, slice, block);
        for (const TileBlock& row_block : rows.blocks) multiply(work, slice, row_block, block);
      }
    }
  }

  void pack_left(const GroupWork& work, const DepthSlice& slice, const TileBlock& rows) const {
    for (const DepthRange& part : slice.parts) {
      const cpu::TileSource from = left_part(rows, part);
      if (is_read_in_place(from)) continue;
      cpu::pack_tiles(from, cpu::TileSide::kLeft, parts_,
                      place_of(work.left, part, work.rows.sums, rows.sums));
    }
  }

  void pack_right(const GroupWork& work, const DepthSlice& slice, const TileBlock& columns) const {
    for (const DepthRange& part : slice.parts) {
      if (!adds_to(part, columns)) continue;
      cpu::pack_tiles(right_part(columns, part), cpu::TileSide::kRight, parts_,
                      place_of(work.right, part, columns.range.count, 0));
    }
  }

  void multiply(const GroupWork& work, const DepthSlice& slice, const TileBlock& rows,
                const TileBlock& columns) const {
    std::vector<cpu::TileFactors> factors;
    for (const DepthRange& part : slice.parts) {
      if (!adds_to(part, columns)) continue;
      cpu::TileFactors& added = factors.emplace_back();
      if (const cpu::TileSource from = left_part(rows, part); is_read_in_place(from)) {
        added.left = static_cast<const uint16_t*>(from.data);
        added.left_stride = from.stride;
      } else {
        added.left = place_of(work.left, part, work.rows.sums, rows.sums);
      }
      added.right = place_of(work.right, part, columns.range.count, 0);
      added.steps = rounded_up(part.range.count, cpu::kTileDepth) / cpu::kTileDepth;
    }
    cpu::TileProduct product = place(rows, columns, &slice == &slices_.back());
    product.terms = factors.data();
    product.term_count = static_cast<int64_t>(factors.size());
    if (work.sums != nullptr) {
      keep_sums(product, work.sums + rows.sums * work.columns.sums + columns.sums, work.columns.sums, slice);
    }
    product.adds = product.adds || &slice != &slices_.front();
    if (&rows == &work.rows.blocks.front() && &columns != &work.columns.blocks.back()) {
      product.upcoming = upcoming(*(&columns + 1), slice);
    }
    const cpu::TileRegisters registers;
    cpu::multiply_tiles(product);
  }

  /// Whether the whole tiles of rows of the left factor can be loaded in place. Rows at a distance of whole
  /// pages would compete for the same lines of the first-level cache.
  bool is_read_in_place(const cpu::TileSource& from) const {
    constexpr int64_t kLine = 64, kPage = 4096;
    return parts_ == 1 && from.depth_is_contiguous && from.across % cpu::kTileSide == 0 &&
           from.depth % cpu::kTileDepth == 0 && 2 * from.stride % kLine == 0 &&
           2 * from.stride % kPage != 0 && reinterpret_cast<uintptr_t>(from.data) % kLine == 0;
  }

  /// Whether this holds for every part of these rows.
  bool is_read_in_place(const TileBlock& rows) const {
    return std::all_of(slices_.begin(), slices_.end(), [&](const DepthSlice& slice) {
      return std::all_of(slice.parts.begin(), slice.parts.end(),
                         [&](const DepthRange& part) { return is_read_in_place(left_part(rows, part)); });
    });
  }

  /// Returns the largest part of the right factor's next block.
  cpu::Upcoming upcoming(const TileBlock& block, const DepthSlice& slice) const {
    const auto bytes_of = [&](const DepthRange& part) { return adds_to(part, block) ? part.range.count : 0; };
    const DepthRange& part = *std::max_element(
        slice.parts.begin(), slice.parts.end(),
        [&](const DepthRange& one, const DepthRange& other) { return bytes_of(one) < bytes_of(other); });
    if (!adds_to(part, block)) return {};
    const cpu::TileSource from = right_part(block, part);
    const int64_t bytes = from.element == cpu::Element::kFloat ? 4 : 2;
    return {.first = static_cast<const char*>(from.data),
            .bytes_between_rows = bytes * from.stride,
            .bytes_of_a_row = bytes * (from.depth_is_contiguous ? from.depth : from.across),
            .rows = from.depth_is_contiguous ? from.across : from.depth};
  }

  cpu::TileProduct place(const TileBlock& rows, const TileBlock& columns, bool is_last) const {
    const std::vector<cpu::TileSource>& rights = terms_.front().rights;
    const TileProducts::Result& result = results_[rows.factor * rights.size() + columns.factor];
    cpu::TileProduct product{.rows = rows.range.count, .columns = columns.range.count, .parts = parts_};
    const int64_t width = rights[columns.factor].across;
    const int64_t first = rows.range.first * width + columns.range.first;
    if (!rounds_) {
      product.sums = static_cast<float*>(result.c.data_ptr()) + first;
      product.sums_stride = width;
      product.adds = result.adds;
    } else if (is_last) {
      product.rounded = static_cast<uint16_t*>(result.c.data_ptr()) + first;
      product.rounded_stride = width;
      product.adds_to_rounded = result.adds;
      if (!result.adds) product.strip = tile_strip_scratch.of<uint16_t>(2 * cpu::kTileSide * kColumns);
      if (result.bias.defined()) {
        product.bias = static_cast<const uint16_t*>(result.bias.const_data_ptr()) + columns.range.first;
      }
    }
    return product;
  }

  /// Makes the product keep sums in fp32, which are rounded with the last slice.
  void keep_sums(cpu::TileProduct& product, float* sums, int64_t stride, const DepthSlice& slice) const {
    product.sums = sums;
    product.sums_stride = stride;
    if (&slice != &slices_.back()) {
      product.rows = rounded_up(product.rows, cpu::kTileSide);
      product.columns = rounded_up(product.columns, cpu::kTileSide);
    }
  }

  std::vector<TileTerm> terms_;
  const std::vector<TileProducts::Result>& results_;
  std::vector<DepthSlice> slices_;
  int parts_;
  bool rounds_;
  int64_t depth_ = 0;  ///< depth of the deepest slice
};

void check(const TileProducts& products) {
  const size_t lefts = products.terms.front().lefts.size(), rights = products.terms.front().rights.size();
  FSDP_CHECK(products.results.size() == lefts * rights, products.results.size());
  const at::Tensor& some = products.results.front().c;
  for (size_t i = 0; i < products.results.size(); ++i) {
    const auto& [c, adds, bias] = products.results[i];
    for (const TileProducts::Term& term : products.terms) {
      FSDP_CHECK(term.lefts.size() == lefts && term.rights.size() == rights);
      const at::Tensor &a = term.lefts[i / rights], &b = term.rights[i % rights];
      if (!b.defined() && &term != &products.terms.front()) continue;
      FSDP_CHECK(can_multiply_by_tiles(a) && b.scalar_type() == a.scalar_type() &&
                     c.scalar_type() == some.scalar_type() &&
                     (c.scalar_type() == at::kFloat || c.scalar_type() == a.scalar_type()) &&
                     c.is_contiguous() && a.size(1) == b.size(0) && c.size(0) == a.size(0) &&
                     c.size(1) == b.size(1),
                 c.sizes(), a.sizes(), b.sizes());
    }
    FSDP_CHECK(!bias.defined() || (bias.is_contiguous() && bias.numel() == c.size(1) &&
                                   c.scalar_type() == at::kBFloat16 && bias.scalar_type() == at::kBFloat16),
               bias.sizes());
  }
}

}  // namespace

void set_float32_parts(int parts) {
  FSDP_CHECK(parts == 2 || parts == 3, parts, " parts");
  parts_of_float32 = parts;
}

int float32_parts() { return parts_of_float32; }

bool can_multiply_by_tiles(const at::Tensor& x) {
  return is_for_cpu(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
         util::has_matrix_unit();
}

void multiply_by_tiles(const TileProducts& products) {
  if (products.results.empty()) return;
  check(products);
  if (products.results.front().c.is_meta()) {
    for (const TileProducts::Term& term : products.terms) {
      for (const at::Tensor& a : term.lefts) {
        for (const at::Tensor& b : term.rights) {
          if (b.defined()) note_product(a.size(0), b.size(1), b.size(0));
        }
      }
    }
    return;
  }
  TiledProduct product(products);
  if (!product.is_empty()) return product.run();
  for (const auto& [c, adds, bias] : products.results) {
    if (!adds) c.zero_();
    if (bias.defined()) c.add_(bias);
  }
}

}  // namespace fsdp::kernels
