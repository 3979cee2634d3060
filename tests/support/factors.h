#pragma once

// Factors of matrix products as they come in training: parts of other tensors, and transposed.

#include <ATen/Functions.h>

namespace fsdp::testing {

/// [rows, columns], its rows or its columns contiguous, cut out of something larger.
inline at::Tensor factor(int64_t rows, int64_t columns, bool transposed, at::ScalarType type) {
  at::Tensor whole = transposed ? at::randn({columns, rows + 3}) : at::randn({rows, columns + 3});
  whole = whole.to(type);
  return transposed ? whole.narrow(1, 1, rows).t() : whole.narrow(1, 1, columns);
}

}  // namespace fsdp::testing
