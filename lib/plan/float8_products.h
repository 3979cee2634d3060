#pragma once

#include "plan/activations.h"

namespace fsdp::plan {

/// What kernels/float8.h has in passing on the tape. Nothing of it is saved.
class Float8Products {
 public:
  Float8Products(const ActivationShape& shape, MemoryTape& tape) : shape_(shape), tape_(tape) {}

  /// y_i = x W_i^T. x: [N, in], y_i: [N, outs[i]]. Leaves nothing: the y_i are the caller's to take.
  void forward(int64_t in, const std::vector<int64_t>& outs);
  /// Leaves the gradient of x and those of the weights that have no place of their own.
  void backward(int64_t in, const std::vector<int64_t>& outs);

 private:
  /// Leaves the tensor in 8 bits, in one order or two.
  void round(int64_t elements, int64_t orders = 1);
  /// [rows, sum] x [sum, columns]. Leaves the result.
  void multiply(int64_t rows, int64_t sum, int64_t columns);
  void multiply_into_place(int64_t rows, int64_t sum, int64_t columns);
  void touch_factors(int64_t rows, int64_t sum, int64_t columns);

  const ActivationShape& shape_;
  MemoryTape& tape_;
};

}  // namespace fsdp::plan
