#pragma once

// Parts of matrices, as shards hold them, by rows and columns.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "util/column_range.h"

namespace fsdp::optim {

/// A block of a matrix that is contiguous in this rank's part of it.
struct MatrixBlock {
  int64_t row = 0, rows = 0;        ///< of the matrix
  int64_t column = 0, columns = 0;  ///< of the matrix
  int64_t offset = 0;               ///< of its first element in the part

  /// [rows, columns], a view. part: [n]
  at::Tensor of(const at::Tensor& part) const {
    return part.narrow(0, offset, rows * columns).view({rows, columns});
  }
};

/// The blocks that make up a part of a matrix with so many columns: some columns of all rows; or, for a range
/// of the flattened matrix, the end of a row, whole rows, and the beginning of a row.
std::vector<MatrixBlock> blocks_of(const util::ColumnRange& part, int64_t columns);

/// Adds the squares of a block [rows, columns] to the sums of its rows and columns, in an order that does not
/// depend on the number of threads.
void add_squares(const at::Tensor& block, double* row_sums, double* column_sums);

}  // namespace fsdp::optim
