#include "kernels/tile_product.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "kernels/block_product.h"
#include "kernels/cpu/tiles.h"
#include "kernels/meta.h"
#include "util/error.h"
#include "util/matrix_units.h"
#include "util/parallel.h"

namespace fsdp::kernels {
namespace {

// A thread's packed blocks of both factors, which stay in a second-level cache of 2 MiB with their results.
constexpr int64_t kDepth = 768;
constexpr int64_t kDepthOfParts = 512;
constexpr int64_t kLeftBytes = 384 << 10;
constexpr int64_t kRightBytes = 768 << 10;
// What a group has before the next one begins.
constexpr int64_t kKeptRows = 2048;     ///< of the left factor
constexpr int64_t kKeptColumns = 1024;  ///< of the result, if sums are rounded

std::atomic<int> parts_of_float32 = 3;

thread_local Scratch tile_left_scratch, tile_right_scratch, tile_sum_scratch;

struct Range {
  int64_t first, count;
  int64_t end() const { return first + count; }
};

/// x as a left factor (rows by depth) or a right one (columns by depth).
cpu::TileSource source(const at::Tensor& x, cpu::TileSide side) {
  FSDP_CHECK(x.stride(1) == 1 || x.stride(0) == 1, x.sizes(), " ", x.strides());
  const int across = side == cpu::TileSide::kLeft ? 0 : 1, depth = 1 - across;
  const bool depth_is_contiguous = x.stride(depth) == 1;
  return {.data = x.const_data_ptr(),
          .element = x.scalar_type() == at::kFloat ? cpu::Element::kFloat : cpu::Element::kBFloat16,
          .stride = depth_is_contiguous ? x.stride(across) : x.stride(depth),
          .depth_is_contiguous = depth_is_contiguous,
          .across = x.size(across),
          .depth = x.size(depth)};
}

cpu::TileSource cut(const cpu::TileSource& from, const Range& across, const Range& depth) {
  const int64_t bytes = from.element == cpu::Element::kFloat ? 4 : 2;
  const int64_t first = from.depth_is_contiguous ? across.first * from.stride + depth.first
                                                 : depth.first * from.stride + across.first;
  cpu::TileSource part = from;
  part.data = static_cast<const char*>(from.data) + bytes * first;
  part.across = across.count;
  part.depth = depth.count;
  return part;
}

/// Rows of a left factor or columns of a right one; `sums` is the first of them among the sums of its group.
struct Block {
  size_t factor;
  Range range;
  int64_t sums;
};

/// Blocks that are packed at a time.
struct Group {
  std::vector<Block> blocks;
  int64_t sums = 0;  ///< rows or columns of sums, of whole tiles
};

/// The products of all factors: left factors are stacked, right factors are side by side.
class TiledProduct {
 public:
  explicit TiledProduct(const TileProducts& products)
      : results_(products.results),
        k_(products.rights.front().size(0)),
        parts_(products.rights.front().scalar_type() == at::kFloat ? float32_parts() : 1),
        rounds_(results_.front().c.scalar_type() != at::kFloat),
        depth_(equal_part(k_, parts_ == 1 ? kDepth : kDepthOfParts, cpu::kTileDepth)) {
    for (const at::Tensor& left : products.lefts) lefts_.push_back(source(left, cpu::TileSide::kLeft));
    for (const at::Tensor& right : products.rights) rights_.push_back(source(right, cpu::TileSide::kRight));
  }

  void run() {
    int64_t units = 0, columns = 0;
    for (const cpu::TileSource& left : lefts_) units += units_of(left);
    for (const cpu::TileSource& right : rights_) columns += right.across;
    const int64_t work = std::max<int64_t>(1, kMultiple * columns * k_);
    util::parallel_for(0, units, std::max<int64_t>(1, kLeastWork / work), [&](int64_t begin, int64_t end) {
      const std::vector<Group> column_groups = columns_in_groups();
      for (const Group& rows : rows_in_groups(begin, end)) {
        for (const Group& group : column_groups) multiply(rows, group);
      }
    });
  }

 private:
  static int64_t units_of(const cpu::TileSource& left) {
    return rounded_up(left.across, kMultiple) / kMultiple;
  }

  /// Rows or columns of about so many bytes, in pairs of tiles: sums in a partial tile are rounded in another
  /// order, so only the ends of results may have partial tiles, wherever a thread begins.
  int64_t across_of(int64_t bytes) const {
    constexpr int64_t kPair = 2 * cpu::kTileSide;
    return std::max(bytes / (2 * depth_ * parts_) / kPair, int64_t{1}) * kPair;
  }

  bool keeps_sums() const { return rounds_ && depth_ < k_; }

  /// Cuts a range of a factor into blocks of about so many bytes; begins a new group after `most` sums.
  void append(std::vector<Group>& groups, size_t factor, const Range& range, int64_t bytes,
              int64_t most) const {
    const int64_t part = equal_part(range.count, across_of(bytes));
    for (int64_t first = range.first; first < range.end(); first += part) {
      if (groups.back().sums >= most) groups.emplace_back();
      Group& group = groups.back();
      const int64_t count = std::min(part, range.end() - first);
      group.blocks.push_back({.factor = factor, .range = {first, count}, .sums = group.sums});
      group.sums += rounded_up(count, cpu::kTileSide);
    }
  }

  /// Units [begin, end) of rows.
  std::vector<Group> rows_in_groups(int64_t begin, int64_t end) const {
    std::vector<Group> groups(1);
    int64_t before = 0;
    for (size_t left = 0; left < lefts_.size(); ++left) {
      const int64_t first = std::max<int64_t>(begin - before, 0) * kMultiple;
      const int64_t last = std::min((end - before) * kMultiple, lefts_[left].across);
      before += units_of(lefts_[left]);
      if (first < last) append(groups, left, {first, last - first}, kLeftBytes, kKeptRows);
    }
    return groups;
  }

  std::vector<Group> columns_in_groups() const {
    std::vector<Group> groups(1);
    const int64_t most = keeps_sums() ? kKeptColumns : std::numeric_limits<int64_t>::max();
    for (size_t right = 0; right < rights_.size(); ++right) {
      append(groups, right, {0, rights_[right].across}, kRightBytes, most);
    }
    return groups;
  }

  void multiply(const Group& rows, const Group& columns) const {
    auto* sums = keeps_sums() ? tile_sum_scratch.of<float>(rows.sums * columns.sums) : nullptr;
    auto* left = tile_left_scratch.of<uint16_t>(cpu::tiled_elements(rows.sums, depth_, parts_));
    auto* right =
        tile_right_scratch.of<uint16_t>(cpu::tiled_elements(across_of(kRightBytes), depth_, parts_));
    for (int64_t k = 0; k < k_; k += depth_) {
      const Range slice{.first = k, .count = std::min(depth_, k_ - k)};
      for (const Block& block : rows.blocks) {
        cpu::pack_tiles(cut(lefts_[block.factor], block.range, slice), cpu::TileSide::kLeft, parts_,
                        left + cpu::tiled_elements(block.sums, slice.count, parts_));
      }
      for (const Block& block : columns.blocks) {
        cpu::pack_tiles(cut(rights_[block.factor], block.range, slice), cpu::TileSide::kRight, parts_, right);
        for (const Block& row_block : rows.blocks) {
          cpu::TileProduct product = place(row_block, block, slice);
          product.left = left + cpu::tiled_elements(row_block.sums, slice.count, parts_);
          product.right = right;
          if (sums != nullptr) {
            keep_sums(product, sums + row_block.sums * columns.sums + block.sums, columns.sums, slice);
          }
          const cpu::TileRegisters registers;
          cpu::multiply_tiles(product);
        }
      }
    }
  }

  cpu::TileProduct place(const Block& rows, const Block& columns, const Range& slice) const {
    const TileProducts::Result& result = results_[rows.factor * rights_.size() + columns.factor];
    cpu::TileProduct product{.rows = rows.range.count,
                             .columns = columns.range.count,
                             .steps = rounded_up(slice.count, cpu::kTileDepth) / cpu::kTileDepth,
                             .parts = parts_};
    const int64_t width = rights_[columns.factor].across;
    const int64_t first = rows.range.first * width + columns.range.first;
    if (!rounds_) {
      product.sums = static_cast<float*>(result.c.data_ptr()) + first;
      product.sums_stride = width;
      product.adds = result.adds || slice.first > 0;
    } else if (slice.end() == k_) {
      product.rounded = static_cast<uint16_t*>(result.c.data_ptr()) + first;
      product.rounded_stride = width;
      product.adds_to_rounded = result.adds;
      if (result.bias.defined()) {
        product.bias = static_cast<const uint16_t*>(result.bias.const_data_ptr()) + columns.range.first;
      }
    }
    return product;
  }

  /// Keeps sums in fp32, which are rounded with the last slice.
  void keep_sums(cpu::TileProduct& product, float* sums, int64_t stride, const Range& slice) const {
    product.sums = sums;
    product.sums_stride = stride;
    product.adds = slice.first > 0;
    if (slice.end() < k_) {
      product.rows = rounded_up(product.rows, cpu::kTileSide);
      product.columns = rounded_up(product.columns, cpu::kTileSide);
    }
  }

  std::vector<cpu::TileSource> lefts_, rights_;
  const std::vector<TileProducts::Result>& results_;
  int64_t k_;
  int parts_;
  bool rounds_;
  int64_t depth_;
};

void check(const TileProducts& products) {
  FSDP_CHECK(products.results.size() == products.lefts.size() * products.rights.size(),
             products.results.size());
  const at::Tensor& some = products.results.front().c;
  for (size_t i = 0; i < products.results.size(); ++i) {
    const at::Tensor& a = products.lefts[i / products.rights.size()];
    const at::Tensor& b = products.rights[i % products.rights.size()];
    const auto& [c, adds, bias] = products.results[i];
    FSDP_CHECK(can_multiply_by_tiles(a) && b.scalar_type() == a.scalar_type() &&
                   c.scalar_type() == some.scalar_type() &&
                   (c.scalar_type() == at::kFloat || c.scalar_type() == a.scalar_type()) &&
                   c.is_contiguous() && a.size(1) == b.size(0) && c.size(0) == a.size(0) &&
                   c.size(1) == b.size(1),
               c.sizes(), a.sizes(), b.sizes());
    FSDP_CHECK(!bias.defined() || (bias.is_contiguous() && bias.numel() == b.size(1) &&
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
  if (products.rights.front().is_meta()) {
    for (const at::Tensor& a : products.lefts) {
      for (const at::Tensor& b : products.rights) note_product(a.size(0), b.size(1), b.size(0));
    }
    return;
  }
  if (products.rights.front().size(0) > 0) return TiledProduct(products).run();
  for (const auto& [c, adds, bias] : products.results) {
    if (!adds) c.zero_();
    if (bias.defined()) c.add_(bias);
  }
}

}  // namespace fsdp::kernels
