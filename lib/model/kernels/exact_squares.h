#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

/// A sum of squares that does not depend on the order of its terms, nor on how they are shared out to ranks: integers count
/// the multiples of powers of 2^28 that make up the squares (Demmel and Nguyen: Parallel reproducible summation, 2015).
/// What is left out is less than 2^-54 of the largest square for each term. Up to 2^35 terms.
class ExactSquares {
 public:
  ExactSquares();
  /// x: fp32, contiguous, on the CPU.
  void add(const at::Tensor& x);
  /// int64; those of several sums are added element by element.
  const at::Tensor& counts() const { return counts_; }
  /// Infinity if a term is not finite.
  double sum() const;

 private:
  at::Tensor counts_;
};

}  // namespace fsdp::kernels
