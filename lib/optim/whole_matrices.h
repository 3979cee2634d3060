#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>

namespace fsdp::optim {

/// How an optimizer over shards reaches whole matrices. Who cuts the parameters implements it.
class WholeMatrices {
 public:
  /// Of a matrix [rows, columns], contiguous float32; gives one of the same shape.
  using Function = std::function<at::Tensor(const at::Tensor& matrix)>;

  virtual ~WholeMatrices() = default;

  /// Whether the parameter (an index into Optimizer::parameters()) has matrices on any rank; alike on all.
  virtual bool has_matrices(size_t parameter) const = 0;

  /// `flat` is [n] float32 like the parameter's value and holds this rank's parts of its matrices, and zeros
  /// elsewhere. Replaces them by the parts of function(matrix), the same on every rank. Collective: every
  /// rank calls it for the same parameters in the same order.
  virtual void map(size_t parameter, const at::Tensor& flat, const Function& function) = 0;
};

}  // namespace fsdp::optim
