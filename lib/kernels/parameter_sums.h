#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/row_kernels.h"

namespace fsdp::kernels {

/// Sums over the rows of x that a backward pass makes for some of its parameters, vectors [width].
class ParameterSums {
 public:
  ParameterSums(const at::Tensor& x, int64_t vectors);
  const RowParts& parts() const { return parts_; }
  /// [parts, width] of a vector, for kernels to fill.
  float* of(int64_t vector) const;

  /// What a backward returns for the parameter whose gradient is that vector: the sums in the parameter's
  /// type, or nothing where they went to the parameter's place (kernels/gradient_sink.h).
  at::Tensor gradient(int64_t vector, const at::Tensor& parameter) const;

 private:
  void total_into(int64_t vector, const at::Tensor& to, bool adds) const;

  Element element_;
  RowParts parts_;
  at::Tensor sums_;  ///< [vectors, parts, width] fp32
};

}  // namespace fsdp::kernels
