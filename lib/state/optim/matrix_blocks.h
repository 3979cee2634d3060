#pragma once

// Blocks of rows and columns that make up the parts of a matrix that a shard holds.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::optim {

/// A block of a matrix, and its place in this rank's parts of the matrix.
struct MatrixBlock {
  int64_t row = 0, rows = 0;        ///< first row in the matrix, number of rows
  int64_t column = 0, columns = 0;  ///< first column in the matrix, number of columns
  int64_t offset = 0;  ///< position of its first element in the parts, which are stored one after another
  int64_t stride = columns;  ///< distance between its rows in the parts

  /// The block as a view [rows, columns] of the parts. parts: [n], contiguous.
  at::Tensor of(const at::Tensor& parts) const {
    return parts.as_strided({rows, columns}, {stride, 1}, parts.storage_offset() + offset);
  }
};

/// The blocks that make up parts of a matrix [rows, columns]. Each part is a range of the flattened matrix
/// (the end of a row, whole rows, and the beginning of a row), a rectangle, or a rectangle of a view that
/// splits each row of the matrix into several rows (at most one block for each row of the view).
std::vector<MatrixBlock> blocks_of(const std::vector<util::Rectangle>& parts, int64_t rows, int64_t columns);

/// Adds the squares of a block [rows, columns] to the sums of its rows and columns, in an order that does not
/// depend on the number of threads.
void add_squares(const at::Tensor& block, double* row_sums, double* column_sums);

}  // namespace fsdp::optim
