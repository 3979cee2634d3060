#pragma once

// Sums over rows and elements of contiguous tensors that can_fuse() accepts (model/kernels/fused.h). No sum
// depends on the number of threads.

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/kernels/row_kernels.h"

namespace fsdp::kernels {

/// Number of elements whose squares are summed at a time, on the CPU. Their sums are added in order.
inline constexpr int64_t kSquareRun = 512;

/// Returns the sum of squares of each tensor, in double precision, each in one pass without a copy: [n]
/// double on the tensors' device. Requires: at least one tensor, and one device for all.
at::Tensor sums_of_squares_on_device(const std::vector<at::Tensor>& tensors);
/// Does so for memory of the caller. sums: [n] double
void sums_of_squares_into(const at::Tensor& sums, const std::vector<at::Tensor>& tensors);
/// Returns the sums to the host, which waits once. Empty for no tensors.
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);

/// Computes x [n] /= divisor on the CPU. Returns the sum of the squares of the quotients, as
/// sums_of_squares() computes it for a run. Requires: n <= kSquareRun.
double divide_run(float* x, int64_t n, double divisor);

/// Sums over the rows of x in a backward pass: gradients of parameters that are vectors [width].
class ParameterSums {
 public:
  ParameterSums(const at::Tensor& x, int64_t vectors);
  const RowParts& parts() const { return parts_; }
  /// Returns a vector's sums, [parts, width], which kernels fill in; with SampleSums, sample by sample.
  float* of(int64_t vector) const;

  /// Returns the results of backward for the vectors' parameters, by one launch of a kernel: the gradient in
  /// the parameter's type, or undefined if the parameter is, or if the gradient was written to the
  /// parameter's gradient place (model/kernels/gradient_sink.h).
  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& parameters) const;

 private:
  PartTotal total(int64_t vector, int64_t sample, const at::Tensor& to, bool adds) const;
  void run(const std::vector<PartTotal>& totals) const;

  Element element_;
  RowParts parts_;
  at::Tensor sums_;  ///< [vectors, parts, width] fp32
};

/// Returns ParameterSums::gradient() of a bias that was added to all rows of y. dy: [..., D]
at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias);

}  // namespace fsdp::kernels
