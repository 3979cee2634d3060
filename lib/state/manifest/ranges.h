#pragma once

// The places of a tensor's parts in files. Ranges at equal distances are one entry with repeats: layouts cut
// tensors regularly, so a few entries describe the parts of thousands of ranks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::checkpoint {

/// `count` copies, each of them `files`, `columns` and `rows` further than the one before.
struct Repeat {
  int64_t count = 1, files = 0, columns = 0, rows = 0;
  bool operator==(const Repeat&) const = default;
};

/// A part of a tensor in a file, and repeats of it: parts at equal distances, in other files.
struct RangeEntry {
  util::Rectangle part{};  ///< rectangle in the view with TensorEntry::rows rows
  size_t file = 0;         ///< index into Manifest::files
  // Set by complete_manifest(), and the same for all copies:
  int64_t offset = 0;  ///< position of the part's first element in the file's data set
  int64_t held = 0;    ///< number of elements of the tensor in that file
  /// Repeats, innermost first. Each repeats the ranges that the ones before it make, in later files.
  std::vector<Repeat> repeats{};

  int64_t count() const;  ///< number of ranges with all copies
  /// The last copy. It is in the last file.
  RangeEntry last() const;
  /// Whether all copies together fill the rectangle from the beginning of the first to the end of the last.
  bool fills_rectangle() const;
};

/// Half-open intervals of files, rows and columns.
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

/// Narrows `copies`, [first, second), to the copies that may meet [begin, end). Copy i covers [at, at +
/// extent) shifted by i * step.
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

/// Calls visit(part, file, entry) for each single range that meets the query.
template <typename Visit>
void for_each_range(const std::vector<RangeEntry>& ranges, const RangeQuery& query, const Visit& visit) {
  for (const RangeEntry& range : ranges) {
    ranges_detail::visit_copies(range, range.part, static_cast<int64_t>(range.file), range.repeats.size(),
                                query, visit);
  }
}

/// All ranges, one by one, without repeats.
std::vector<RangeEntry> expanded(const std::vector<RangeEntry>& ranges);

/// Joins ranges that repeat, in the order of files, if offset and held agree. `edges`: the first and the last
/// file with ranges, if more ranges will be joined later. Ranges that may continue there are not joined into
/// outer repeats.
std::vector<RangeEntry> joined(std::vector<RangeEntry> ranges,
                               const std::pair<int64_t, int64_t>* edges = nullptr);

}  // namespace fsdp::checkpoint
