#include "base/util/rectangle.h"

#include "base/util/error.h"

namespace fsdp::util {
namespace {

/// Elements [begin, end) of `local`, which is stored as [height, length].
std::vector<Rectangle> rows_of(const Rectangle& local, int64_t begin, int64_t end) {
  std::vector<Rectangle> parts;
  const int64_t length = local.length();
  while (begin < end) {
    const int64_t row = begin / length, column = begin % length, left = end - begin;
    const bool whole_rows = column == 0 && left >= length;
    const int64_t count = whole_rows ? length : std::min(length - column, left);
    const int64_t height = whole_rows ? left / length : 1;
    parts.push_back({.begin = local.begin + column,
                     .end = local.begin + column + count,
                     .rows = local.rows,
                     .row_begin = local.row_begin + row,
                     .row_end = local.row_begin + row + height});
    begin += height * count;
  }
  if (parts.empty()) parts.push_back({local.begin, local.begin, local.rows});
  return parts;
}

}  // namespace

std::vector<Rectangle> compose(int64_t numel, const Rectangle& part, const Rectangle& local) {
  FSDP_CHECK(local.fits(numel) && part.fits(local.numel()), "no part of a part of ", numel, " elements");
  if (part.rows == 1) return rows_of(local, part.begin, part.end * part.height());
  if (local.rows == 1) {
    const int64_t columns = local.numel() / part.rows;
    if (columns == 0) return {{local.begin, local.begin}};
    FSDP_CHECK(local.begin % columns == 0 && numel % columns == 0, "elements ", local.begin, " to ",
               local.end, " of ", numel, " are not rows of ", columns);
    const int64_t row = local.begin / columns;
    return {{part.begin, part.end, numel / columns, row + part.row_begin, row + part.row_end}};
  }
  FSDP_CHECK(part.rows == local.height(), "a part of ", part.rows, " rows of ", local.height(),
             " rows is not a rectangle");
  return {{local.begin + part.begin, local.begin + part.end, local.rows, local.row_begin + part.row_begin,
           local.row_begin + part.row_end}};
}

}  // namespace fsdp::util
