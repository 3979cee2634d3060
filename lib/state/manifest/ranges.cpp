#include "state/manifest/ranges.h"

#include <optional>

namespace fsdp::checkpoint {

int64_t RangeEntry::count() const {
  int64_t count = 1;
  for (const Repeat& repeat : repeats) count *= repeat.count;
  return count;
}

RangeEntry RangeEntry::last() const {
  RangeEntry last = *this;
  last.repeats.clear();
  for (const Repeat& repeat : repeats) {
    last.file += static_cast<size_t>((repeat.count - 1) * repeat.files);
    last.part = ranges_detail::moved(last.part, repeat, repeat.count - 1);
  }
  return last;
}

bool RangeEntry::fills_rectangle() const {
  std::vector<Repeat> by_distance = repeats;
  std::sort(by_distance.begin(), by_distance.end(), [](const Repeat& a, const Repeat& b) {
    return a.rows != b.rows ? a.rows < b.rows : a.columns < b.columns;
  });
  int64_t columns = part.length(), rows = part.height();
  for (const Repeat& repeat : by_distance) {
    if (repeat.rows == 0 && repeat.columns == columns) {
      columns *= repeat.count;
    } else if (repeat.columns == 0 && repeat.rows == rows) {
      rows *= repeat.count;
    } else {
      return false;
    }
  }
  return true;
}

std::vector<RangeEntry> expanded(const std::vector<RangeEntry>& ranges) {
  std::vector<RangeEntry> all;
  for_each_range(ranges, {}, [&](const util::Rectangle& part, size_t file, const RangeEntry& entry) {
    all.push_back({.part = part, .file = file, .offset = entry.offset, .held = entry.held});
  });
  return all;
}

namespace {

/// The distance from the first range of `a` to the first range of `b`. Nothing if it leads backwards or only
/// to another file.
std::optional<Repeat> distance(const RangeEntry& a, const RangeEntry& b) {
  const Repeat step{.count = 2,
                    .files = static_cast<int64_t>(b.file) - static_cast<int64_t>(a.file),
                    .columns = b.part.begin - a.part.begin,
                    .rows = b.part.row_begin - a.part.row_begin};
  if (step.files <= 0 || step.columns < 0 || step.rows < 0 || step.columns + step.rows == 0)
    return std::nullopt;
  return step;
}

bool have_equal_inner(const RangeEntry& a, const RangeEntry& b, size_t levels) {
  return std::equal(a.repeats.begin(), a.repeats.begin() + static_cast<ptrdiff_t>(levels), b.repeats.begin());
}

/// Adds `b` to `a` if `b` continues the repeats of `a` or repeats `a` as a whole. Returns whether it did.
bool join(RangeEntry& a, const RangeEntry& b, bool may_repeat) {
  if (a.offset != b.offset || a.held != b.held || a.part.length() != b.part.length() ||
      a.part.height() != b.part.height()) {
    return false;
  }
  const auto step = distance(a, b);
  if (!step) return false;
  const size_t of_a = a.repeats.size(), of_b = b.repeats.size(), levels = std::max(of_a, of_b);
  const auto goes_on = [&](const Repeat& repeat, int64_t times) {
    return step->files == times * repeat.files && step->columns == times * repeat.columns &&
           step->rows == times * repeat.rows;
  };
  if (levels > 0 && have_equal_inner(a, b, std::min({of_a, of_b, levels - 1}))) {
    if (of_a == of_b) {
      Repeat &outer = a.repeats.back(), other = b.repeats.back();
      const int64_t count = std::exchange(other.count, outer.count);
      if (other == outer && goes_on(outer, outer.count)) {
        outer.count += count;
        return true;
      }
    } else if (of_a == of_b + 1 && goes_on(a.repeats.back(), a.repeats.back().count)) {
      ++a.repeats.back().count;
      return true;
    } else if (of_b == of_a + 1 && goes_on(b.repeats.back(), 1)) {
      a.repeats = b.repeats;
      ++a.repeats.back().count;
      return true;
    }
  }
  const auto files = static_cast<int64_t>(a.last().file - a.file);
  if (!may_repeat || a.repeats != b.repeats || step->files <= files) return false;
  a.repeats.push_back(*step);
  return true;
}

/// Number of latest ranges with which a range is compared. In a regular layout a rank holds at most a few
/// ranges of a tensor.
constexpr size_t kMostCompared = 8;

}  // namespace

std::vector<RangeEntry> joined(std::vector<RangeEntry> ranges, const std::pair<int64_t, int64_t>* edges) {
  std::sort(ranges.begin(), ranges.end(), [](const RangeEntry& a, const RangeEntry& b) {
    return a.file != b.file ? a.file < b.file : util::precedes(a.part, b.part);
  });
  const auto is_inside = [&](const RangeEntry& range) {
    return edges == nullptr || (static_cast<int64_t>(range.file) > edges->first &&
                                static_cast<int64_t>(range.last().file) < edges->second);
  };
  std::vector<RangeEntry> result;
  for (RangeEntry& range : ranges) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t back = 1; back <= std::min(result.size(), kMostCompared); ++back) {
        const auto before = result.end() - static_cast<ptrdiff_t>(back);
        if (!join(*before, range, is_inside(*before) && is_inside(range))) continue;
        range = std::move(*before);
        result.erase(before);
        changed = true;
        break;
      }
    }
    result.push_back(std::move(range));
  }
  return result;
}

}  // namespace fsdp::checkpoint
