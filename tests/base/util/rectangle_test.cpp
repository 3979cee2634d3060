#include "base/util/rectangle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/util/error.h"

namespace fsdp::util {
namespace {

using Elements = std::vector<int64_t>;

/// The elements of a rectangle of a tensor of `numel` elements, in its order.
Elements elements_of(const Rectangle& rectangle, int64_t numel) {
  Elements elements;
  for (int64_t row = rectangle.row_begin; row < rectangle.row_end; ++row) {
    for (int64_t column = rectangle.begin; column < rectangle.end; ++column) {
      elements.push_back(row * (numel / rectangle.rows) + column);
    }
  }
  return elements;
}

/// All rectangles, the empty ones too.
std::vector<Rectangle> rectangles_of(int64_t numel) {
  std::vector<Rectangle> all;
  for (int64_t rows = 1; rows <= numel; ++rows) {
    if (numel % rows != 0) continue;
    for (int64_t begin = 0; begin <= numel / rows; ++begin) {
      for (int64_t end = begin; end <= numel / rows; ++end) {
        for (int64_t row_begin = 0; row_begin <= rows; ++row_begin) {
          for (int64_t row_end = row_begin; row_end <= rows; ++row_end) {
            all.push_back({begin, end, rows, row_begin, row_end});
          }
        }
      }
    }
  }
  return all;
}

std::string shown(const Rectangle& r) {
  return concat("columns ", r.begin, " to ", r.end, " of rows ", r.row_begin, " to ", r.row_end, " of ",
                r.rows);
}

TEST(Rectangle, HasAllRowsUnlessTheyAreGiven) {
  EXPECT_EQ((Rectangle{2, 5}), (Rectangle{2, 5, 1, 0, 1}));
  EXPECT_EQ((Rectangle{2, 5, 4}), (Rectangle{2, 5, 4, 0, 4}));
  EXPECT_TRUE((Rectangle{2, 5, 4}).has_all_rows());
  EXPECT_FALSE((Rectangle{2, 5, 4, 1, 4}).has_all_rows());
  EXPECT_EQ((Rectangle{2, 5, 4}).numel(), 12);
  EXPECT_EQ((Rectangle{2, 5, 4, 1, 3}).numel(), 6);
}

TEST(Rectangle, FitsItsTensorOnly) {
  for (const Rectangle& fitting : rectangles_of(8)) EXPECT_TRUE(fitting.fits(8)) << shown(fitting);
  for (const Rectangle& other :
       {Rectangle{-1, 2}, Rectangle{3, 2}, Rectangle{0, 9}, Rectangle{0, 3, 4}, Rectangle{0, 1, 3},
        Rectangle{0, 1, 0}, Rectangle{0, 1, 4, -1, 2}, Rectangle{0, 1, 4, 3, 2}, Rectangle{0, 1, 4, 3, 5}}) {
    EXPECT_FALSE(other.fits(8)) << shown(other);
  }
}

TEST(Rectangle, OverlapsAreWhatTwoRectanglesHaveInCommon) {
  constexpr int64_t kNumel = 12;
  std::vector<std::pair<Rectangle, Elements>> all;
  for (const Rectangle& each : rectangles_of(kNumel)) {
    if (each.numel() > 0) all.emplace_back(each, elements_of(each, kNumel));
  }
  Elements common, expected;
  for (const auto& [a, in_a] : all) {
    for (const auto& [b, in_b] : all) {
      common.clear();
      expected.clear();
      bool alike = true;
      for_each_overlap(kNumel, a, b, [&](const Overlap& overlap) {
        for (int64_t i = 0; i < overlap.count; ++i) {
          const int64_t element = in_a.at(static_cast<size_t>(overlap.in_a + i));
          alike = alike && element == in_b.at(static_cast<size_t>(overlap.in_b + i));
          common.push_back(element);
        }
      });
      std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(expected));
      ASSERT_TRUE(alike && common == expected) << shown(a) << "; " << shown(b);
    }
  }
}

TEST(Rectangle, WithoutElementsOverlapsNothing) {
  const auto fail = [](const Overlap&) { FAIL(); };
  for_each_overlap(0, {0, 0}, {0, 0}, fail);
  for_each_overlap(12, {0, 12}, {0, 3, 4, 2, 2}, fail);
  for_each_overlap(12, {1, 1, 4}, {0, 12}, fail);
}

/// Whether compose() promises a result.
bool composes(const Rectangle& part, const Rectangle& local, int64_t numel) {
  if (part.rows == 1) return true;
  const int64_t columns = local.numel() / part.rows;
  if (local.rows == 1) return columns == 0 || (local.begin % columns == 0 && numel % columns == 0);
  return part.rows == local.height();
}

TEST(Rectangle, APartOfAPartIsTheSameElementsOfTheWhole) {
  int64_t composed = 0, refused = 0;
  for (const int64_t numel : {1, 8, 12}) {
    for (const Rectangle& local : rectangles_of(numel)) {
      const Elements in_whole = elements_of(local, numel);
      if (in_whole.empty()) continue;
      for (const Rectangle& part : rectangles_of(local.numel())) {
        if (!composes(part, local, numel)) {
          ++refused;
          EXPECT_THROW(compose(numel, part, local), Error) << shown(part) << " of " << shown(local);
          continue;
        }
        ++composed;
        Elements expected, found;
        for (const int64_t element : elements_of(part, local.numel())) {
          expected.push_back(in_whole[static_cast<size_t>(element)]);
        }
        const std::vector<Rectangle> rectangles = compose(numel, part, local);
        bool fit = true;
        for (const Rectangle& each : rectangles) {
          fit = fit && each.fits(numel) && each.rows == rectangles[0].rows;
          fit = fit && (each.numel() > 0 || rectangles.size() == 1);
          const Elements more = elements_of(each, numel);
          found.insert(found.end(), more.begin(), more.end());
        }
        ASSERT_TRUE(fit && rectangles.size() <= 3 && found == expected)
            << shown(part) << " of " << shown(local);
      }
    }
  }
  EXPECT_GT(composed, 1000);
  EXPECT_GT(refused, 1000);
}

// Slices of a tensor must have one view on all ranks, of which some may have nothing.
TEST(Rectangle, PartsOfTensorsThatAreCutAlikeGetOneView) {
  struct Cut {
    int64_t local_rows, part_rows;  ///< of the views in which the whole and the local tensor are cut
    int64_t expected;
  };
  constexpr int64_t kRows = 4, kColumns = 6, kRanks = 2;
  for (const auto& [local_rows, part_rows, expected] :
       {Cut{1, 1, 1}, Cut{kRows, 1, kRows}, Cut{2 * kRows, 1, 2 * kRows}, Cut{kRows, kRows, kRows},
        Cut{1, kRows / kRanks, kRows}}) {
    const int64_t columns = kRows * kColumns / local_rows;
    for (int64_t model = 0; model < kRanks; ++model) {
      const Rectangle local{columns * model / kRanks, columns * (model + 1) / kRanks, local_rows};
      const int64_t part_columns = local.numel() / part_rows;
      for (int64_t begin = 0; begin <= part_columns; ++begin) {
        for (const Rectangle& each : compose(kRows * kColumns, {begin, part_columns, part_rows}, local)) {
          EXPECT_EQ(each.rows, expected) << shown(each);
        }
      }
    }
  }
}

TEST(Rectangle, AFlatPartOfColumnsIsTheEndOfARowWholeRowsAndTheBeginningOfOne) {
  // Elements 2 to 15 of columns 3 to 7 of [6, 8].
  EXPECT_EQ(compose(48, {2, 15}, {3, 7, 6}),
            (std::vector<Rectangle>{{5, 7, 6, 0, 1}, {3, 7, 6, 1, 3}, {3, 6, 6, 3, 4}}));
}

}  // namespace
}  // namespace fsdp::util
