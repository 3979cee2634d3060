#pragma once

// Parts of tensors that are cut on any of their dimensions, and what two of them have in common.

#include <algorithm>
#include <cstdint>

namespace fsdp::util {

/// Columns [begin, end) of a tensor seen as [rows, columns]: the elements that a cut on one dimension gives,
/// where `rows` is the product of the dimensions before it. With one row, elements [begin, end) of the flattened
/// tensor. Shards, state dicts and checkpoints all say in this way which part of a tensor they hold; its elements
/// lie row after row, [rows, end - begin] contiguous.
struct ColumnRange {
  int64_t begin = 0, end = 0;
  int64_t rows = 1;

  int64_t length() const { return end - begin; }
  int64_t numel() const { return rows * length(); }
  bool operator==(const ColumnRange&) const = default;
};

/// Elements that are contiguous in both of two ranges: `count` from place `in_a` of the first and place
/// `in_b` of the second, where a range is seen as [rows, length] contiguous.
struct Overlap {
  int64_t in_a = 0, in_b = 0, count = 0;
};

/// Calls visit(Overlap) for all that two ranges of the same tensor of `numel` elements have in common, in the
/// order of the elements.
template <typename Visit>
void for_each_overlap(int64_t numel, const ColumnRange& a, const ColumnRange& b, Visit&& visit) {
  if (a.numel() == 0 || b.numel() == 0) return;
  const int64_t a_columns = numel / a.rows, b_columns = numel / b.rows;
  for (int64_t a_row = 0; a_row < a.rows; ++a_row) {
    const int64_t a_begin = a_row * a_columns + a.begin, a_end = a_row * a_columns + a.end;  // of the tensor
    for (int64_t b_row = a_begin / b_columns; b_row < b.rows; ++b_row) {
      const int64_t b_begin = b_row * b_columns + b.begin, b_end = b_row * b_columns + b.end;
      if (b_begin >= a_end) break;
      const int64_t begin = std::max(a_begin, b_begin), end = std::min(a_end, b_end);
      if (begin >= end) continue;
      visit(Overlap{.in_a = a_row * a.length() + begin - a_begin,
                    .in_b = b_row * b.length() + begin - b_begin,
                    .count = end - begin});
    }
  }
}

}  // namespace fsdp::util
