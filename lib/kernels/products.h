#pragma once

// Who multiplies what, under kernels/matmul.h: products without autograd, by the library that a Matmul names
// and, where it has none for a type or for so few rows, by libtorch. Factors: a: [N, K], b: [K, M], of any
// strides, though packing is for those whose rows or columns are contiguous.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "kernels/block_product.h"
#include "kernels/matmul.h"

namespace fsdp::kernels {

/// Whether a layer's products with x are made here, in backward too; else autograd has them.
bool computes_here(const at::Tensor& x, Matmul matmul);

/// Whether multiply_here() has products of this type.
bool multiplies_here(const at::Tensor& x, Matmul matmul);

/// c = a b, or is added to, of each, on the CPU, in blocks or by tiles; c is fp32 or, of tiles, bf16.
void multiply_here(std::span<const ProductOf> products, const at::Tensor& b, Matmul matmul);

/// a b, a b + bias, and a b_i for each b.
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, Matmul matmul);
at::Tensor biased_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Matmul matmul);
std::vector<at::Tensor> products_of(const at::Tensor& a, const std::vector<at::Tensor>& bs, Matmul matmul);

/// sum += a b, in the sum's type; an undefined sum is 0.
void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

/// c = a b, or is added to, by cuBLAS or by tiles, if multiplies_in_place(); c is fp32 or has the type of a
/// and b.
bool multiplies_in_place(const at::Tensor& a, Matmul matmul);
void multiply_in_place(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds, Matmul matmul);

/// a b, undefined if the weight's sink has it (gradient_sink.h).
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

/// Gradients of several weights, of which each is a product with the same b.
class GradientsWith {
 public:
  GradientsWith(const at::Tensor& b, Matmul matmul);

  /// As weight_gradient(), but what goes to a sink may be there only after finish().
  at::Tensor add(const at::Tensor& weight, const at::Tensor& a);
  void finish();

 private:
  const at::Tensor& b_;
  Matmul matmul_;
  bool waits_;
  std::vector<ProductOf> products_;
};

}  // namespace fsdp::kernels
