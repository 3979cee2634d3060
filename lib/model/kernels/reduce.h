#pragma once

// Sums over rows and elements of contiguous tensors that can_fuse() accepts (model/kernels/fused.h). No sum depends
// on the number of threads.

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/kernels/row_kernels.h"

namespace fsdp::kernels {

/// The elements whose squares are summed at a time; the sums of these runs are added in their order, on the CPU.
inline constexpr int64_t kSquareRun = 512;

/// Sum of squares per tensor, in double precision, each in one pass without a copy; all tensors, of which there
/// is at least one, are on one device. [n] double on that device.
at::Tensor sums_of_squares_on_device(const std::vector<at::Tensor>& tensors);
/// The same for the host, which waits once. No tensors: empty.
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);

/// x [n] /= divisor on the CPU, and the sum of the squares then, as sums_of_squares() takes it of a run. n <= kSquareRun
double divide_run(float* x, int64_t n, double divisor);

/// Sums over the rows of x in a backward pass: gradients of parameters that are vectors [width].
class ParameterSums {
 public:
  ParameterSums(const at::Tensor& x, int64_t vectors);
  const RowParts& parts() const { return parts_; }
  /// [parts, width] for a vector, to be filled by kernels; with SampleSums, one sample's parts after another's.
  float* of(int64_t vector) const;

  /// The gradient that backward returns for the vector's parameter: in the parameter's type, or undefined if
  /// it went to the parameter's gradient place (model/kernels/gradient_sink.h).
  at::Tensor gradient(int64_t vector, const at::Tensor& parameter) const;

 private:
  struct Total {
    int64_t vector, sample = 0;
    at::Tensor to;
    bool adds = false;
  };
  void total_into(const Total& total) const;

  Element element_;
  RowParts parts_;
  at::Tensor sums_;  ///< [vectors, parts, width] fp32
};

/// The gradient, as ParameterSums::gradient(), of a bias that was added to all rows of y. dy: [..., D]
at::Tensor gradient_of_bias(const at::Tensor& dy, const at::Tensor& bias);

}  // namespace fsdp::kernels
