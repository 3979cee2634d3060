#pragma once

// Products of matrices, computed as cuBLAS is asked for them.

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <functional>
#include <string>

#include "standin.h"

namespace standin {

/// A matrix of Fortran's order, or a batch of them, at an address of the stand-in.
struct Operand {
  void* data = nullptr;
  cudaDataType type = CUDA_R_32F;
  long long leading = 0;
  long long stride = 0;
  bool is_transposed = false;
};

/// d = alpha a b + beta c + bias, a and b times their scales. a: [m, k], b: [k, n], c and d: [m, n], bias:
/// [m]. Operands without data are none.
struct Product {
  long long m = 0, n = 0, k = 0, batch = 1;
  double alpha = 1, beta = 0;
  Operand a{}, b{}, c{}, d{}, bias{};
  Operand gelu_input_to{};  ///< [m, n]: receives d, which then becomes gelu(d), in the tanh form
  Operand gelu_input{};     ///< [m, n]: d is multiplied by gelu' of it
  Operand sums_of_a{};      ///< [m]: receives the sums over k
  const float *scale_a = nullptr,
              *scale_b = nullptr;  ///< of float8 factors: one number or, by rows, [m] and [n]
  bool scales_rows = false;

  /// False for a type that is not known.
  bool compute() const;
};

/// The line of a product in the list of launches: rows, columns and depth as C orders them, and the result's
/// type.
inline std::string launch_text(long long m, long long n, long long k, long long batch, cudaDataType type) {
  const std::string sizes = std::to_string(n) + " x " + std::to_string(m) + " x " + std::to_string(k);
  const char* const to = type == CUDA_R_32F ? "fp32" : type == CUDA_R_64F ? "fp64" : "16 bits";
  return "product " + sizes + (batch > 1 ? " x " + std::to_string(batch) : "") + " to " + to;
}

/// What a stream does for it.
inline std::function<void()> computed(const Product& product) {
  return [product] {
    if (!product.compute()) standin_violation("a product of a type that the stand-in does not compute");
  };
}

}  // namespace standin
