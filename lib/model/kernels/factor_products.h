#pragma once

// Products below autograd, for the functions of matmul.h and adapted_linear.h. Factors: a: [N, K], b: [K, M],
// with any strides. matmul.h describes which library computes them.

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "model/kernels/block_product.h"
#include "model/kernels/matmul.h"
#include "model/kernels/sample_sums.h"

namespace fsdp::kernels {

/// Whether a layer's products with x are computed here, also in backward, not by autograd and libtorch.
bool computes_here(const at::Tensor& x, Matmul matmul);

/// Whether multiply_here() supports this type.
bool multiplies_here(const at::Tensor& x, Matmul matmul);
/// Computes products on the CPU, in blocks or by tiles. Results are fp32 or, by tiles, bf16.
void multiply_here(std::span<const ProductOf> products, const at::Tensor& b, Matmul matmul);

/// Returns a b (+ bias).
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b, Matmul matmul,
                      const std::optional<at::Tensor>& bias = std::nullopt);
/// Adds a b to `sum`, in its type.
void add_product_of(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// Returns a b_i for each b.
std::vector<at::Tensor> products_of(const at::Tensor& a, const std::vector<at::Tensor>& bs, Matmul matmul);

/// Terms a b_i of several sums. An undefined b_i adds nothing to its sum.
struct Summands {
  at::Tensor a;
  std::vector<at::Tensor> bs;
};
/// Returns each sum in the factors' type, rounded once by tiles. Requires: the first `bs` are all defined.
std::vector<at::Tensor> sums_of_products(const std::vector<Summands>& summands, Matmul matmul);

/// Whether multiply_in_place() supports this left factor.
bool multiplies_in_place(const at::Tensor& a, Matmul matmul);
/// Computes c = a b or, with `adds`, c += a b, by cuBLAS or by tiles. c is fp32 or has the type of a and b.
void multiply_in_place(at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool adds, Matmul matmul);

/// Computes c = a b (+ bias) or, with `adds`, c += a b, on a GPU: by libtorch, or as its trials have chosen
/// (product_choices.h). bias: undefined for none.
void multiply_on_gpu(at::Tensor c, const at::Tensor& a, const at::Tensor& b, bool adds,
                     const at::Tensor& bias = {});

/// Returns a b; undefined if it was written to the weight's sink (gradient_sink.h).
at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

/// Gradients of several weights, each of which is a product with b.
class GradientsWith {
 public:
  GradientsWith(const at::Tensor& b, Matmul matmul)
      : b_(b), matmul_(matmul), waits_(SampleSums::current() == nullptr && multiplies_here(b, matmul)) {}

  /// Like weight_gradient(), but sinks may be written to by finish() only.
  at::Tensor add(const at::Tensor& weight, const at::Tensor& a);
  void finish();

 private:
  const at::Tensor& b_;
  Matmul matmul_;
  bool waits_;  ///< whether finish() computes all products, and packs b once
  std::vector<ProductOf> products_;
};

}  // namespace fsdp::kernels
