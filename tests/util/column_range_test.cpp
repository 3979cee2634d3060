#include "util/column_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace fsdp::util {
namespace {

/// The elements of a range of 12, in its order.
std::vector<int64_t> elements_of(const ColumnRange& range) {
  std::vector<int64_t> elements;
  for (int64_t row = 0; row < range.rows; ++row) {
    for (int64_t column = range.begin; column < range.end; ++column) {
      elements.push_back(row * 12 / range.rows + column);
    }
  }
  return elements;
}

/// All ranges of 12 elements.
std::vector<ColumnRange> all_ranges() {
  std::vector<ColumnRange> ranges;
  for (int64_t rows : {1, 2, 3, 4, 6, 12}) {
    for (int64_t begin = 0; begin <= 12 / rows; ++begin) {
      for (int64_t end = begin; end <= 12 / rows; ++end) ranges.push_back({begin, end, rows});
    }
  }
  return ranges;
}

TEST(ColumnRange, OverlapsAreWhatTwoRangesHaveInCommon) {
  for (const ColumnRange& a : all_ranges()) {
    for (const ColumnRange& b : all_ranges()) {
      auto in_a = elements_of(a), in_b = elements_of(b);
      std::vector<int64_t> common, expected;
      for_each_overlap(12, a, b, [&](const Overlap& overlap) {
        for (int64_t i = 0; i < overlap.count; ++i) {
          ASSERT_EQ(in_a.at(static_cast<size_t>(overlap.in_a + i)),
                    in_b.at(static_cast<size_t>(overlap.in_b + i)));
          common.push_back(in_a[static_cast<size_t>(overlap.in_a + i)]);
        }
      });
      std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(expected));
      ASSERT_EQ(common, expected);
    }
  }
}

TEST(ColumnRange, ATensorWithoutElementsOverlapsNothing) {
  for_each_overlap(0, {0, 0}, {0, 0}, [](const Overlap&) { FAIL(); });
}

}  // namespace
}  // namespace fsdp::util
