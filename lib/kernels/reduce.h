#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

/// For tensors that can_fuse() accepts, contiguous. Nothing depends on the number of threads.

/// The sum of the squares of all elements, added in double precision in one pass without a copy.
double sum_of_squares(const at::Tensor& x);
/// That of each tensor; all are of one device, which is waited for once.
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);

/// What a backward returns for a bias that was added to all rows of y: the sum of the rows of dy [..., D] in
/// the bias's type, or nothing where it went to the bias's place (kernels/gradient_sink.h).
at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias);

}  // namespace fsdp::kernels
