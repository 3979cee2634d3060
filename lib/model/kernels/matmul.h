#pragma once

// Products with weight matrices, by the fastest available library that computes in true fp32.
//
// libtorch computes fp32 products on the CPU by MKL, which uses AVX-512 only on Intel's CPUs. oneDNN, which
// libtorch contains, uses it on all CPUs. On Intel's CPUs and on those with AVX2 only, where kOneDnn stands
// for products of our own, both are equally fast, but kOneDnn has the advantages below. In bf16 libtorch
// always uses oneDNN.
//
// With kOneDnn on CPUs that support its small products (block_product.h), fp32 products consist of these, and
// gradients of weights and biases, also in bf16, are added in fp32 to their gradient places
// (gradient_sink.h). With kAmx, the matrix unit (tile_product.h) computes all products in fp32 and bf16,
// except those of few rows.
//
// On CUDA devices cuBLAS computes all products, for every Matmul. Its products for gradients of weights write
// to the gradient places, in fp32 or in the weight's type.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::kernels {

enum class Matmul { kMkl, kOneDnn, kAmx };

/// Returns the value of training.matmul: "mkl", "onednn", "amx" or "auto", which means amx if there is a
/// matrix unit (util::has_matrix_unit()), otherwise onednn on CPUs with AVX2. Depends on the machine only,
/// so that a run resumed there rounds as before. Throws Error(kUsage) for other names, and for "amx" without
/// a matrix unit.
Matmul matmul_by_name(const std::string& name);

/// Returns "mkl", "onednn" or "amx".
const char* name_of(Matmul matmul);

// These layers compute in the type of their operands, which is that of the region in a region of autocast.

/// Returns x as the operand of a product: cast to the type of the thread's region of autocast, if any.
at::Tensor autocast_operand(const at::Tensor& x);

// With `recomputed`, backward computes results again of products that are computed here (recomputed.h).

// A product with an `addend` also adds that, if trials have chosen so (product_epilogues.h).

struct Addend;

/// Returns y = x W^T. x: [..., in], weight: [out, in] -> [..., out]
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul, bool recomputed = false,
                  Addend* addend = nullptr);

/// Returns linear() for several weights. Products that are computed here pass over x and its gradient once.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul,
                                bool recomputed = false);

/// Returns y = x W + b. x: [..., in], weight: [in, out], bias: [out], or none -> [..., out]
/// `leaves_bias`: the function that gets y computes the bias's gradient. Requires: computes_here().
at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, Matmul matmul, bool recomputed = false,
                             bool leaves_bias = false, Addend* addend = nullptr);

// The following functions are for autograd functions, which take and return tensors of any dimensions: views
// outside of them would be nodes of the graph, which cost the host more than a small product.

/// Returns x as a contiguous matrix. x: [..., n] -> [N, n]
at::Tensor as_matrix(const at::Tensor& x);
/// Returns product, [N, n], as [..., n] with the rows of `like`, [..., m], but not as a view of autograd.
at::Tensor shaped(const at::Tensor& product, at::IntArrayRef like);
inline at::Tensor shaped(const at::Tensor& product, const at::Tensor& like) {
  return shaped(product, like.sizes());
}

/// Returns a b^T without autograd. a: [N, K], b: [M, K], with any strides -> [N, M]
at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// Writes product() to `to`, of the factors' type, which is contiguous or, on a GPU, has contiguous rows.
void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// Computes sum += a b^T in fp32; an undefined sum is 0.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

}  // namespace fsdp::kernels
