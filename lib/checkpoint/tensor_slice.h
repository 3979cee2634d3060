#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

/// One range of a global tensor that a rank holds.
///
/// The global tensor `name` has `shape` and prod(shape) elements in row-major order. Seen as
/// [rows, prod(shape) / rows] it has columns, of which this rank holds [begin, end) of every row in `data`
/// (1-D, contiguous, rows * (end - begin) elements). With one row these are elements of the flattened tensor.
/// An empty range is allowed. All ranks and all slices see a tensor in the same number of rows.
/// Names are "model/<parameter>" for weights and "optimizer/<state>/<parameter>" for optimizer state.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor data;
  int64_t rows = 1;

  int64_t numel() const { return rows * (end - begin); }
};

}  // namespace fsdp::checkpoint
