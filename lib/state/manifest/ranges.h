#pragma once

// Where the parts of a tensor are: ranges in files, and ranges at equal distances as one. A layout cuts tensors by
// rule, so that a few of these say what thousands of ranks hold. Needs no libtorch.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::checkpoint {

/// `count` copies, the next of which is so many files, columns and rows further.
struct Repeat {
  int64_t count = 1, files = 0, columns = 0, rows = 0;
  bool operator==(const Repeat&) const = default;
};

/// A part of a tensor that is in a file, and its copies in other files, of other parts.
struct RangeEntry {
  util::Rectangle part{};  ///< in the view of TensorEntry::rows
  size_t file = 0;         ///< index into Manifest::files
  // The same for all copies; set by complete_manifest():
  int64_t offset = 0;  ///< of its first element in the file's data set
  int64_t held = 0;    ///< elements of the tensor in that file
  /// The inner ones first: each repeats what those before it make, in files behind theirs.
  std::vector<Repeat> repeats{};

  int64_t count() const;  ///< of ranges
  /// The last copy, which is in the last file.
  RangeEntry last() const;
  /// Whether the ranges, together, are the rectangle from the first one's beginning to the last one's end.
  bool fills_rectangle() const;
};

/// Files and places in a tensor, as half-open intervals.
struct RangeQuery {
  int64_t file_begin = 0, file_end = INT64_MAX;
  int64_t row_begin = 0, row_end = INT64_MAX;
  int64_t begin = 0, end = INT64_MAX;  ///< columns
};

namespace ranges_detail {

inline util::Rectangle moved(const util::Rectangle& part, const Repeat& repeat, int64_t times) {
  return {part.begin + times * repeat.columns, part.end + times * repeat.columns, part.rows,
          part.row_begin + times * repeat.rows, part.row_end + times * repeat.rows};
}

/// The copies, [first, second) of repeat.count, that an interval may meet: each extends over [at, at + extent) plus its distance.
inline void narrow(std::pair<int64_t, int64_t>& copies, int64_t at, int64_t extent, int64_t step,
                   int64_t begin, int64_t end) {
  if (at >= end || (step == 0 && at + extent <= begin)) copies.second = 0;
  if (step == 0) return;
  if (at + extent <= begin) copies.first = std::max(copies.first, (begin - at - extent) / step + 1);
  if (end != INT64_MAX) copies.second = std::min(copies.second, (end - 1 - at) / step + 1);
}

template <typename Visit>
void visit_copies(const RangeEntry& range, util::Rectangle part, int64_t file, size_t levels,
                  const RangeQuery& query, const Visit& visit) {
  int64_t files = 1, rows = part.height(), columns = part.length();
  for (size_t i = 0; i + 1 < levels; ++i) {
    const Repeat& inner = range.repeats[i];
    files += (inner.count - 1) * inner.files;
    rows += (inner.count - 1) * inner.rows;
    columns += (inner.count - 1) * inner.columns;
  }
  const Repeat repeat = levels == 0 ? Repeat{} : range.repeats[levels - 1];
  std::pair<int64_t, int64_t> copies{0, repeat.count};
  narrow(copies, file, files, repeat.files, query.file_begin, query.file_end);
  if (copies.first >= copies.second) return;
  narrow(copies, part.row_begin, rows, repeat.rows, query.row_begin, query.row_end);
  narrow(copies, part.begin, columns, repeat.columns, query.begin, query.end);
  const util::Rectangle first = part;
  for (int64_t i = copies.first; i < copies.second; ++i) {
    part = moved(first, repeat, i);
    if (levels > 1) {
      visit_copies(range, part, file + i * repeat.files, levels - 1, query, visit);
    } else {
      visit(std::as_const(part), static_cast<size_t>(file + i * repeat.files), range);
    }
  }
}

}  // namespace ranges_detail

/// Calls visit(part, file, entry) for every single range that meets the query.
template <typename Visit>
void for_each_range(const std::vector<RangeEntry>& ranges, const RangeQuery& query, const Visit& visit) {
  for (const RangeEntry& range : ranges) {
    ranges_detail::visit_copies(range, range.part, static_cast<int64_t>(range.file), range.repeats.size(),
                                query, visit);
  }
}

/// All single ranges.
std::vector<RangeEntry> expanded(const std::vector<RangeEntry>& ranges);

/// Joins ranges that are repeated, in the order of files, where offset and held agree. `edges`: first and last file
/// of which there are ranges, if others will be joined to these: what may go on there is not repeated as a whole.
std::vector<RangeEntry> joined(std::vector<RangeEntry> ranges,
                               const std::pair<int64_t, int64_t>* edges = nullptr);

}  // namespace fsdp::checkpoint
