#pragma once

// Parts of tensors as rectangles, their overlaps, and parts of parts.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fsdp::util {

/// Columns [begin, end) of rows [row_begin, row_end) of a tensor viewed as [rows, columns]. A rectangle with
/// all rows is a slice along one dimension, where `rows` is the product of the dimensions before it. With
/// `rows` = 1 it is the elements [begin, end) of the flattened tensor. Shards, state dicts and checkpoints
/// describe parts of tensors as rectangles, and store them contiguously as [height, length].
struct Rectangle {
  int64_t begin = 0, end = 0;
  int64_t rows = 1;  ///< rows of the view; the number of columns follows from the tensor's size
  int64_t row_begin = 0, row_end = rows;

  int64_t length() const { return end - begin; }
  int64_t height() const { return row_end - row_begin; }
  int64_t numel() const { return height() * length(); }
  bool has_all_rows() const { return height() == rows; }
  /// Whether this is a rectangle, possibly empty, of a tensor of `numel` elements.
  bool fits(int64_t numel) const {
    return rows > 0 && numel % rows == 0 && 0 <= begin && begin <= end && end <= numel / rows &&
           0 <= row_begin && row_begin <= row_end && row_end <= rows;
  }
  bool operator==(const Rectangle&) const = default;
};

/// The order in which checkpoints store the rectangles of a tensor: by their first elements.
inline bool precedes(const Rectangle& a, const Rectangle& b) {
  return a.row_begin != b.row_begin ? a.row_begin < b.row_begin : a.begin < b.begin;
}

/// Number of elements of all the rectangles together.
template <typename Rectangles>
int64_t numel_of(const Rectangles& rectangles) {
  int64_t numel = 0;
  for (const Rectangle& rectangle : rectangles) numel += rectangle.numel();
  return numel;
}

/// Maps `part` of a local tensor to the whole tensor of `numel` elements, of which the local one is `local`.
/// Returns one to three rectangles, possibly empty, whose elements are those of `part` in the same order. All
/// parts of local tensors that are cut in the same way get the same view. Supported are
/// - a part of the flattened local tensor, in the view of `local`: the end of a row, whole rows, and the
/// beginning of a row;
/// - a part in a view with the rows of the local tensor, in the view of `local`;
/// - any part if `local` is a range of the flattened tensor, in the view whose rows are as long as the
/// part's, which must divide the range.
std::vector<Rectangle> compose(int64_t numel, const Rectangle& part, const Rectangle& local);

/// A run of `count` elements that are contiguous in two rectangles, from index `in_a` of the first and `in_b`
/// of the second. Each rectangle is stored as contiguous [height, length].
struct Overlap {
  int64_t in_a = 0, in_b = 0, count = 0;
};

/// Calls visit(Overlap) for the common elements of two rectangles of a tensor of `numel` elements, in order.
template <typename Visit>
void for_each_overlap(int64_t numel, const Rectangle& a, const Rectangle& b, Visit&& visit) {
  if (a.numel() == 0 || b.numel() == 0) return;
  if (a.rows == b.rows && (a.begin >= b.end || b.begin >= a.end)) return;
  const int64_t a_columns = numel / a.rows, b_columns = numel / b.rows;
  // Visits only the rows of `a` between the first and the last element of `b`.
  const int64_t first = (b.row_begin * b_columns + b.begin) / a_columns;
  const int64_t last = ((b.row_end - 1) * b_columns + b.end - 1) / a_columns;
  for (int64_t a_row = std::max(a.row_begin, first); a_row < std::min(a.row_end, last + 1); ++a_row) {
    // Elements of the tensor.
    const int64_t a_begin = a_row * a_columns + a.begin, a_end = a_row * a_columns + a.end;
    for (int64_t b_row = std::max(b.row_begin, a_begin / b_columns); b_row < b.row_end; ++b_row) {
      const int64_t b_begin = b_row * b_columns + b.begin, b_end = b_row * b_columns + b.end;
      if (b_begin >= a_end) break;
      const int64_t begin = std::max(a_begin, b_begin), end = std::min(a_end, b_end);
      if (begin >= end) continue;
      visit(Overlap{.in_a = (a_row - a.row_begin) * a.length() + begin - a_begin,
                    .in_b = (b_row - b.row_begin) * b.length() + begin - b_begin,
                    .count = end - begin});
    }
  }
}

}  // namespace fsdp::util
