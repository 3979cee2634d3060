#pragma once

// Slices of tensors along any dimension, and their overlaps.

#include <algorithm>
#include <cstdint>

namespace fsdp::util {

/// Columns [begin, end) of a tensor viewed as [rows, columns]: a slice along one dimension, where `rows` is
/// the product of the dimensions before it. With one row: elements [begin, end) of the flattened tensor.
/// Shards, state dicts and checkpoints describe their parts of tensors by it, and store them contiguously as
/// [rows, end - begin].
struct ColumnRange {
  int64_t begin = 0, end = 0;
  int64_t rows = 1;

  int64_t length() const { return end - begin; }
  int64_t numel() const { return rows * length(); }
  bool operator==(const ColumnRange&) const = default;
};

/// `count` elements that are contiguous in two ranges, from index `in_a` of the first and `in_b` of the
/// second, each stored as contiguous [rows, length].
struct Overlap {
  int64_t in_a = 0, in_b = 0, count = 0;
};

/// Calls visit(Overlap) for the common elements of two ranges of a tensor of `numel` elements, in their
/// order.
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
