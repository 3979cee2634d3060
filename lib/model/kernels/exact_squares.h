#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// A sum of squares that does not depend on the order of its terms, nor on their distribution over ranks:
/// integers count the multiples of powers of 2^28 that make up the squares (Demmel and Nguyen: Parallel
/// reproducible summation, 2015). The omitted part is less than 2^-54 of the largest square for each term. Up
/// to 2^35 terms.
class ExactSquares {
 public:
  ExactSquares();
  /// Adds the squares of x: fp32, contiguous, on the CPU.
  void add(const at::Tensor& x);
  /// Counts as int64. Counts of several sums are added element by element.
  const at::Tensor& counts() const { return counts_; }
  /// Returns the sum; infinity if a term is not finite.
  double sum() const;

 private:
  at::Tensor counts_;
};

}  // namespace fsdp::kernels
