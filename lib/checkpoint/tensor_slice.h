#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::checkpoint {

/// One contiguous range of a global tensor that a rank holds.
///
/// The global tensor `name` has `shape`; flattened in row-major order it has prod(shape) elements, of which
/// this rank holds [begin, end) in `data` (1-D, contiguous, end - begin elements). An empty range is allowed.
/// Names are "model/<parameter>" for weights and "optimizer/<state>/<parameter>" for optimizer state.
struct TensorSlice {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor data;
};

}  // namespace fsdp::checkpoint
