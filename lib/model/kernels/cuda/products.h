#pragma once

// Products on GPUs by cublasLt, with algorithms that trials have chosen (model/kernels/product_choices.h) or
// that it proposes itself.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "model/kernels/product_choices.h"

namespace fsdp::kernels::cuda {

/// More that the kernel of a product does.
enum class Epilogue {
  kNone,
  kGelu,          ///< beside = c, then c = gelu(c), in the tanh form
  kGeluGradient,  ///< c = c * gelu'(beside)
  kColumnSums     ///< beside [M] = the sums over the rows of b, which is the gradient of a bias
};

/// A product c = a b (+ bias) (+ added) or, with `adds`, c += a b, on a GPU. a: [N, K], b: [K, M], of bf16 or
/// fp16, or both in 8 bits with scales; c, added: [N, M] of their type (bf16 for 8 bits) or fp32; bias: [M]
/// of c's type. Undefined tensors are none.
struct GpuProduct {
  const at::Tensor &c, &a, &b;
  bool adds = false;
  at::Tensor bias = {}, added = {};
  Epilogue epilogue = Epilogue::kNone;
  at::Tensor beside = {};  ///< of c's type; [N, M] unless the epilogue says otherwise
  /// Whether it may be tried but not computed, because `beside` is not what the epilogue needs.
  bool only_tries = false;
  at::Tensor scale_of_a = {}, scale_of_b = {};  ///< factors of a and b in 8 bits; fp32 []
};

/// Computes it by the algorithm that was chosen for its shape. Returns false if the other way was chosen or
/// the choice is open: then c and `beside` are unchanged or, after a trial, hold something that is to be
/// overwritten. `otherwise` computes the product in the other way: by libtorch, and by kernels of ours what
/// the epilogue and `added` would do; a trial calls it several times.
bool multiply_by_choice(ProductChoices& choices, const GpuProduct& product,
                        const std::function<void()>& otherwise);

/// Computes it by the algorithm that cublasLt proposes first, for a product that libtorch has no function
/// for. Returns false if it proposes none.
bool multiply_as_proposed(const GpuProduct& product);

/// Returns the GPU and the version of the library: "NVIDIA H100 80GB HBM3, cublasLt 130100".
std::string product_library(const at::Device& device);

}  // namespace fsdp::kernels::cuda
