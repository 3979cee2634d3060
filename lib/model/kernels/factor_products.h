#pragma once

// Products below autograd, for the functions of matmul.h and adapted_linear.h. Factors: a: [N, K], b: [K, M], of any
// strides. Which library computes them: see matmul.h.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "model/kernels/block_product.h"
#include "model/kernels/matmul.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {

/// Whether a layer's products with x are computed here, in backward too; else by autograd and libtorch.
bool computes_here(const at::Tensor& x, Matmul matmul);

/// Whether multiply_here() supports this type.
bool multiplies_here(const at::Tensor& x, Matmul matmul);
/// Computes products on the CPU, in blocks or by tiles. Their results are fp32 or, by tiles, bf16.
void multiply_here(std::span<const ProductOf> products, const at::Tensor& b, Matmul matmul);

/// a b (+ bias)
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, Matmul matmul,
                      const std::optional<at::Tensor>& bias = std::nullopt);
/// sum += a b, in the sum's type.
void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// a b_i for each b.
std::vector<at::Tensor> products_of(const at::Tensor& a, const std::vector<at::Tensor>& bs, Matmul matmul);

/// a b_i for each of several sums; an undefined b_i adds nothing to its sum.
struct Summands {
  at::Tensor a;
  std::vector<at::Tensor> bs;
};
/// Each sum in the factors' type; by tiles it is rounded once. The first `bs` are all defined.
std::vector<at::Tensor> sums_of_products(const std::vector<Summands>& summands, Matmul matmul);

/// Whether multiply_in_place() supports this left factor.
bool multiplies_in_place(const at::Tensor& a, Matmul matmul);
/// c = a b or, with `adds`, c += a b, by cuBLAS or by tiles; c is fp32 or has the type of a and b.
void multiply_in_place(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds, Matmul matmul);

/// a b; undefined if it was written to the weight's sink (gradient_sink.h).
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

/// Gradients of several weights, each of which is a product with b.
class GradientsWith {
 public:
  GradientsWith(const at::Tensor& b, Matmul matmul)
      : b_(b), matmul_(matmul), waits_(SampleSums::current() == nullptr && multiplies_here(b, matmul)) {}

  /// As weight_gradient(), but sinks may be written to by finish() only.
  at::Tensor add(const at::Tensor& weight, const at::Tensor& a);
  void finish();

 private:
  const at::Tensor& b_;
  Matmul matmul_;
  bool waits_;  ///< all products are made by finish(), which packs b once
  std::vector<ProductOf> products_;
};

}  // namespace fsdp::kernels
