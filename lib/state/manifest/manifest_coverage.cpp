// Checks that the ranges of a manifest are possible and hold every element of every tensor once.

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "base/dtype/dtype.h"
#include "base/util/error.h"
#include "base/util/shape.h"
#include "state/manifest/manifest.h"

namespace fsdp::checkpoint {

namespace {

/// Text for a part: "elements 3 to 5", "columns 0 to 4 of rows 2 to 7".
std::string part_text(const util::Rectangle& part) {
  std::string text = concat(part.rows == 1 ? "elements " : "columns ", part.begin, " to ", part.end);
  if (!part.has_all_rows()) text += concat(" of rows ", part.row_begin, " to ", part.row_end);
  return text;
}

/// Calls overlap(first, second) for the first pair of parts that have elements in common, if there is one.
template <typename Overlap>
void find_overlap(const std::vector<RangeEntry>& ranges, const Overlap& overlap) {
  // A sweep over the rows keeps the parts that contain the current row, sorted by first column.
  struct Border {
    int64_t row;
    bool begins;
    const RangeEntry* range;
  };
  std::vector<Border> borders;
  for (const RangeEntry& range : ranges) {
    borders.push_back({range.part.row_begin, true, &range});
    borders.push_back({range.part.row_end, false, &range});
  }
  std::sort(borders.begin(), borders.end(), [](const Border& a, const Border& b) {
    return a.row != b.row ? a.row < b.row : !a.begins && b.begins;
  });
  std::map<int64_t, const RangeEntry*> open;
  for (const auto& [row, begins, range] : borders) {
    if (!begins) {
      open.erase(range->part.begin);
      continue;
    }
    const auto next = open.lower_bound(range->part.begin);
    if (next != open.end() && next->first < range->part.end) return overlap(*next->second, *range);
    if (next != open.begin()) {
      const RangeEntry& before = *std::prev(next)->second;
      if (before.part.end > range->part.begin) return overlap(before, *range);
    }
    open.emplace_hint(next, range->part.begin, range);
  }
}

/// Whether the range and all its copies are within a tensor of `numel` elements and within `files` files.
/// Each copy is in a file of its own, so there are at most `files` copies.
bool is_possible(const RangeEntry& range, int64_t numel, int64_t files) {
  if (!range.part.fits(numel) || range.part.numel() == 0) return false;
  RangeEntry reach{.part = range.part, .file = range.file};
  const auto fits = [](int64_t times, int64_t step, int64_t room) {
    return step == 0 || times <= room / step;
  };
  for (const Repeat& repeat : range.repeats) {
    const int64_t times = repeat.count - 1, files_before = static_cast<int64_t>(reach.file - range.file);
    const int64_t left = files - 1 - static_cast<int64_t>(reach.file);
    if (times < 1 || repeat.files <= files_before || repeat.columns < 0 || repeat.rows < 0 ||
        !fits(times, repeat.files, left) ||
        !fits(times, repeat.columns, numel / range.part.rows - reach.part.end) ||
        !fits(times, repeat.rows, range.part.rows - reach.part.row_end)) {
      return false;
    }
    reach.repeats = {repeat};
    reach = reach.last();
  }
  return true;
}

/// Limits how many single ranges are expanded from the repeated ranges of a manifest. A rank holds a few
/// rectangles of a tensor and most repeated ranges are never expanded, so only files that were made to
/// exhaust memory reach the limits.
class ExpansionBudget {
 public:
  explicit ExpansionBudget(const Manifest& manifest) : files_(std::ssize(manifest.files)) {
    int64_t listed = files_;
    for (const auto& [name, entry] : manifest.tensors) listed += std::ssize(entry.ranges);
    left_ = kFewestOfAll + kMostPerEntry * listed;
  }

  /// Whether the ranges of one tensor may be expanded. Requires: is_possible() for each range.
  bool allows(const std::vector<RangeEntry>& ranges) {
    int64_t count = 0;
    for (const RangeEntry& range : ranges) count += range.count();
    if (count <= std::ssize(ranges)) return true;
    left_ -= count;
    return left_ >= 0 && count <= kFewest + std::ssize(ranges) + kMostPerFile * files_;
  }

 private:
  static constexpr int64_t kFewest = 1024, kMostPerFile = 16;
  /// Limit for all tensors together, although one tensor is expanded at a time. Allows thousands of tensors
  /// in thousands of files that each hold some rectangles of each tensor, as with tensor parallelism.
  static constexpr int64_t kFewestOfAll = int64_t{1} << 26, kMostPerEntry = 8192;
  int64_t files_, left_;
};

using Refuse = std::function<void(const std::string& what)>;

/// Refuses ranges that overlap or leave out elements. Requires: the ranges have no copies.
void require_coverage(std::vector<RangeEntry> ranges, const TensorEntry& entry, const Manifest& manifest,
                      const Refuse& refuse) {
  const auto file_of = [&](const RangeEntry& range) { return manifest.files[range.file].name; };
  const auto refuse_overlap = [&](const RangeEntry& first, const RangeEntry& second) {
    refuse(concat("is stored twice: ", part_text(second.part), " in ", file_of(second), " overlap ",
                  part_text(first.part), " in ", file_of(first)));
  };
  std::sort(ranges.begin(), ranges.end(),
            [](const RangeEntry& a, const RangeEntry& b) { return util::precedes(a.part, b.part); });
  if (ranges.empty() || ranges.back().part.row_begin == 0) {
    int64_t covered = 0;
    const RangeEntry* before = nullptr;
    for (const RangeEntry& range : ranges) {
      const int64_t begin = range.part.begin;
      if (begin < covered) refuse_overlap(*before, range);
      if (begin > covered) {
        refuse(
            concat("lacks ", part_text({covered, begin, entry.rows}), ", before those in ", file_of(range)));
      }
      before = &range;
      covered = range.part.end;
    }
    const int64_t columns = entry.numel / entry.rows;
    if (covered != columns)
      refuse(concat("lacks ", part_text({covered, columns, entry.rows}), " at its end"));
  } else {
    find_overlap(ranges, refuse_overlap);
  }
  int64_t stored = 0;
  for (const RangeEntry& range : ranges) stored += range.part.numel();
  if (stored != entry.numel) {
    refuse(concat("lacks ", entry.numel - stored, " of its ", entry.numel, " elements"));
  }
}

constexpr const char* kTooMany =
    "has more ranges in a file than any layout makes; it is damaged, so use another checkpoint";

/// Sets offset and held if ranges that share files are repeated in the same way, so that every file holds the
/// same number of elements of them as their first file. Otherwise returns false. `ranges`: sorted by file.
bool set_offsets_by_rule(std::vector<RangeEntry>& ranges) {
  int64_t last = -1;
  for (auto begin = ranges.begin(), end = begin; begin != ranges.end(); begin = end) {
    if (static_cast<int64_t>(begin->file) <= last) return false;
    last = static_cast<int64_t>(begin->last().file);
    end = std::find_if(begin, ranges.end(), [&](const RangeEntry& range) {
      return range.file != begin->file || range.repeats != begin->repeats;
    });
    std::sort(begin, end,
              [](const RangeEntry& x, const RangeEntry& y) { return util::precedes(x.part, y.part); });
    int64_t held = 0;
    for (auto range = begin; range != end; ++range) {
      range->offset = held;
      held += range->part.numel();
    }
    for (auto range = begin; range != end; ++range) range->held = held;
  }
  return true;
}

/// Sets offset and held from the ranges in the same file.
void set_offsets(std::vector<RangeEntry>& ranges, ExpansionBudget& budget, const Refuse& refuse) {
  std::sort(ranges.begin(), ranges.end(),
            [](const RangeEntry& a, const RangeEntry& b) { return a.file < b.file; });
  if (set_offsets_by_rule(ranges)) return;
  if (!budget.allows(ranges)) refuse(kTooMany);
  ranges = expanded(ranges);
  std::sort(ranges.begin(), ranges.end(), [](const RangeEntry& a, const RangeEntry& b) {
    return a.file != b.file ? a.file < b.file : util::precedes(a.part, b.part);
  });
  for (auto begin = ranges.begin(), end = begin; begin != ranges.end(); begin = end) {
    int64_t held = 0;
    for (; end != ranges.end() && end->file == begin->file; ++end) {
      end->offset = held;
      held += end->part.numel();
    }
    for (auto range = begin; range != end; ++range) range->held = held;
  }
  ranges = joined(std::move(ranges));
}

/// Does the work of complete_manifest() for one tensor.
void complete_tensor(const std::string& name, TensorEntry& entry, const Manifest& manifest,
                     ExpansionBudget& budget, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    fail(ErrorKind::kCheckpoint, where, ": tensor ", name, " ", what);
  };
  entry.numel = util::checked_numel(entry.shape, util::element_size(entry.dtype));
  if (entry.numel < 0) refuse(concat("has an impossible shape ", util::shape_text(entry.shape)));
  if (dimensions_in(entry.shape, entry.rows) == 0) {
    refuse(concat("of shape ", util::shape_text(entry.shape), " cannot have ", entry.rows, " rows"));
  }
  for (RangeEntry& range : entry.ranges) {
    range.offset = range.held = 0;
    if (is_possible(range, entry.numel, static_cast<int64_t>(manifest.files.size()))) continue;
    const util::Rectangle& part = range.part;
    refuse(concat("has an impossible range [", part.begin, ", ", part.end, ")",
                  part.row_begin == 0 && part.row_end == part.rows
                      ? ""
                      : concat(" of rows [", part.row_begin, ", ", part.row_end, ")"),
                  range.repeats.empty() ? "" : ", or copies of it,", " in ", manifest.files[range.file].name,
                  " (it has ", entry.numel / entry.rows,
                  entry.rows == 1 ? " elements)" : concat(" columns and ", entry.rows, " rows)")));
  }
  entry.ranges = joined(std::move(entry.ranges));
  std::vector<RangeEntry> rectangles, by_rule;
  for (const RangeEntry& range : entry.ranges) {
    if (!range.fills_rectangle()) by_rule.push_back(range);
  }
  if (!budget.allows(by_rule)) refuse(kTooMany);
  for (const RangeEntry& range : entry.ranges) {
    if (!range.fills_rectangle()) {
      for (RangeEntry& single : expanded({range})) rectangles.push_back(std::move(single));
      continue;
    }
    const util::Rectangle &first = range.part, last = range.last().part;
    rectangles.push_back(
        {.part = {first.begin, last.end, first.rows, first.row_begin, last.row_end}, .file = range.file});
  }
  try {
    require_coverage(std::move(rectangles), entry, manifest, refuse);
  } catch (const util::Error&) {
    if (budget.allows(entry.ranges)) {
      require_coverage(expanded(entry.ranges), entry, manifest, refuse);  // an error names the ranges
    }
    throw;
  }
  set_offsets(entry.ranges, budget, refuse);
  std::sort(entry.ranges.begin(), entry.ranges.end(),
            [](const RangeEntry& a, const RangeEntry& b) { return util::precedes(a.part, b.part); });
}

}  // namespace

int64_t TensorEntry::numel_in(size_t file) const {
  int64_t numel = 0;
  const auto at = static_cast<int64_t>(file);
  for_each_range(ranges, {.file_begin = at, .file_end = at + 1},
                 [&](const auto&, size_t, const RangeEntry& range) { numel = range.held; });
  return numel;
}

void complete_manifest(Manifest& manifest, const std::string& where) {
  ExpansionBudget budget(manifest);
  for (auto& [name, entry] : manifest.tensors) complete_tensor(name, entry, manifest, budget, where);
}

}  // namespace fsdp::checkpoint
