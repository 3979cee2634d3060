#pragma once

// Dropout (Srivastava et al., 2014) whose choice is a function of where a value stands, not of a generator's
// state: a step that is computed again, by recomputation or after a resume, drops the same values, on any
// number of ranks and threads.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

/// Each value of x is 0 with probability p, and x / (1 - p) otherwise: value i of row r, the r-th along
/// dimension 0, by (key, first_row + r, i) alone. Works under autograd; backward chooses again and keeps
/// nothing. 0 <= p < 1.
at::Tensor dropout(const at::Tensor& x, double p, uint64_t key, int64_t first_row);

}  // namespace fsdp::kernels
