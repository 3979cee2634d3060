#pragma once

// Parts of matrices, as shards hold them, by rows and columns.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/util/rectangle.h"

namespace fsdp::optim {

/// A block of a matrix, and where this rank's parts of the matrix hold it.
struct MatrixBlock {
  int64_t row = 0, rows = 0;        ///< of the matrix
  int64_t column = 0, columns = 0;  ///< of the matrix
  int64_t offset = 0;               ///< of its first element in the parts, stored one after another
  int64_t stride = columns;         ///< from row to row in the parts

  /// [rows, columns], a view. parts: [n], contiguous
  at::Tensor of(const at::Tensor& parts) const {
    return parts.as_strided({rows, columns}, {stride, 1}, parts.storage_offset() + offset);
  }
};

/// The blocks that make up parts of a matrix [rows, columns]. Each part is a range of the flattened matrix (the
/// end of a row, whole rows, and the beginning of a row), a rectangle, or one in a view in which a row of the
/// matrix is several rows (a block for each of these, at most).
std::vector<MatrixBlock> blocks_of(const std::vector<util::Rectangle>& parts, int64_t rows, int64_t columns);

/// Adds the squares of a block [rows, columns] to the sums of its rows and columns, in an order that does not
/// depend on the number of threads.
void add_squares(const at::Tensor& block, double* row_sums, double* column_sums);

}  // namespace fsdp::optim
