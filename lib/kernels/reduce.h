#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// The sum of the squares of all elements, added in double precision in one pass without a copy; fp32 and
/// bf16 on the CPU (can_fuse()), contiguous. Does not depend on the number of threads.
double sum_of_squares(const at::Tensor& x);

/// The sum of the rows of x [..., D], fp32 [D], for the same tensors. Does not depend on the number of
/// threads.
at::Tensor sum_of_rows(const at::Tensor& x);

}  // namespace fsdp::kernels
