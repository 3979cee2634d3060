#pragma once

// Products with weight matrices, by the fastest available library that computes in true fp32.
//
// libtorch computes fp32 products on the CPU by MKL, which does not use AVX-512 on other CPUs than Intel's;
// oneDNN, which libtorch contains, does (on an AMD EPYC with AVX-512: 97 with MKL, 215 GFLOP/s per core with
// oneDNN, both with an error of 1e-6). On Intel's CPUs both are equally fast, but kOneDnn has the advantages
// below. In bf16 libtorch always uses oneDNN.
//
// With kOneDnn on CPUs that support its small products (block_product.h), fp32 products consist of these, and
// gradients of weights and biases, in bf16 too, are added in fp32 to their gradient places (gradient_sink.h).
// With kAmx, the matrix unit (tile_product.h) computes all products in fp32 and bf16, except those of few
// rows.
//
// On CUDA devices cuBLAS computes all products, for every Matmul. Its products for gradients of weights write
// to the gradient places, in fp32 or in the weight's type.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::kernels {

enum class Matmul { kMkl, kOneDnn, kAmx };

/// For training.matmul: "mkl", "onednn", "amx" or "auto", which means amx if there is a matrix unit
/// (util::has_matrix_unit()), else onednn on CPUs with AVX-512. Depends on the machine only, so that a run
/// resumed there rounds as before. Throws Error(kUsage) for other names, and for "amx" without a matrix unit.
Matmul matmul_by_name(const std::string& name);

/// "mkl", "onednn" or "amx".
const char* name_of(Matmul matmul);

// These layers compute in the type of their operands, which is that of the region in a region of autocast.

/// x as a product takes it: cast to the type of the region of autocast that the thread is in, if any.
at::Tensor autocast_operand(const at::Tensor& x);

// With `recomputed`, backward computes results of products that are computed here again (recomputed.h).

/// y = x W^T. x: [..., in], weight: [out, in] -> [..., out]
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul, bool recomputed = false);

/// linear() for several weights, by fewer passes over x and its gradient if the products are computed here.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul,
                                bool recomputed = false);

/// y = x W + b. x: [..., in], weight: [in, out], bias: [out], or none -> [..., out]
at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, Matmul matmul, bool recomputed = false);

// For autograd functions, which take and give tensors of any dimensions: views outside of them would be nodes of
// the graph, which cost the host more than a small product.

/// x: [..., n] -> [N, n], contiguous
at::Tensor as_matrix(const at::Tensor& x);
/// product: [N, n] -> [..., n], with the rows of `like` [..., m]. Not a view, which autograd would have to follow.
at::Tensor shaped(const at::Tensor& product, at::IntArrayRef like);
inline at::Tensor shaped(const at::Tensor& product, const at::Tensor& like) {
  return shaped(product, like.sizes());
}

/// a b^T without autograd. a: [N, K], b: [M, K], of any strides -> [N, M]
at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// Like product(), into `to`, of the factors' type, which is contiguous or, on a GPU, has contiguous rows.
void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// sum += a b^T, in fp32; an undefined sum is 0.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

}  // namespace fsdp::kernels
