#pragma once

// Products with weight matrices, by the fastest library at hand that computes in true fp32.
//
// libtorch sends fp32 products on the CPU to MKL, which knows no AVX-512 on CPUs that are not Intel's;
// oneDNN, inside libtorch too, does (on an AMD EPYC with AVX-512: 97 against 215 GFLOP/s a core, with an
// error of 1e-6 either way). On Intel's both are as fast, and a step is faster by what is said next. In bf16
// libtorch has oneDNN alone, whatever is chosen.
//
// With oneDNN on CPUs that have its small products (block_product.h), fp32 products are made of these, and
// the gradients of weights and biases, in bf16 too, are added in fp32 to where they accumulate
// (gradient_sink.h). With a matrix unit (tile_product.h) it makes all of them, in fp32 and in bf16, but for
// products of few rows.
//
// On CUDA devices all products are cuBLAS's, whatever is chosen. The gradients of weights are added by the
// product itself to where they accumulate, in fp32 or in the weight's type.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace fsdp::kernels {

enum class Matmul { kMkl, kOneDnn, kAmx };

/// Of training.matmul: "mkl", "onednn", "amx" or "auto", which is the matrix unit where there is one
/// (util::has_matrix_unit()), else oneDNN on CPUs with AVX-512. Depends on nothing but the machine, so that a
/// run that is resumed there rounds as before. Throws Error(kUsage) for other names, and for "amx" without.
Matmul matmul_by_name(const std::string& name);

/// "mkl", "onednn" or "amx".
const char* name_of(Matmul matmul);

/// y = x W^T. x: [..., in], weight: [out, in] -> [..., out]
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Matmul matmul);

/// The same with several weights. Where products are of kernels/block_product.h, x's gradient is summed by
/// them.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, Matmul matmul);

/// y = x W + b. x: [N, in], weight: [in, out], bias: [out], or none -> [N, out]
at::Tensor transposed_linear(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, Matmul matmul);

/// a b^T without autograd. a: [N, K], b: [M, K], of any strides -> [N, M]
at::Tensor product(const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// The same into `to`, which is contiguous and of their type.
void product_into(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b, Matmul matmul);
/// sum += a b^T, in fp32; an undefined sum is 0.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, Matmul matmul);

}  // namespace fsdp::kernels
