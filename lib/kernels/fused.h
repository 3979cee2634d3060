#pragma once

// What lies between the matrix products of a transformer, each as one pass over memory in forward and one in
// backward, where autograd's composition of libtorch's operations makes many. Arithmetic is fp32 within a
// kernel; results are rounded to the type of the input once. Gradients of weights and biases are summed in
// fp32, in an order that the number of threads does not change, and go to the parameters' places where they
// have such (gradient_sink.h).
//
// On a GPU (cuda/) nothing here waits for it, and sums do not depend on how its threads are scheduled either.
//
// Every function works under autograd (first derivatives). They are for tensors that can_fuse() accepts; the
// composed path of lib/nn serves all others.

#include <ATen/core/Tensor.h>

#include <utility>

#include "kernels/matmul.h"
#include "kernels/rows.h"

namespace fsdp::kernels {

/// Whether there are kernels for the tensor's device and type: fp32 and bf16, on the CPU, on meta
/// (kernels/meta.h) and, in programs built with CUDA, on its devices.
bool can_fuse(const at::Tensor& x);

/// Zhang and Sennrich: Root Mean Square Layer Normalization, 2019. x: [..., D], weight: [D] of x's type.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// {x + residual, rms_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon);

/// Ba, Kiros and Hinton: Layer Normalization, 2016. x: [..., D]; weight, bias: [D] of x's type.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

/// {x + residual, layer_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double epsilon);

/// Su et al.: RoFormer, 2021, with the halves of a head as the pairs (Llama).
/// x: [B, T, heads, head_dim]; cos, sin: [T, head_dim] fp32, halves alike.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up (Shazeer: GLU Variants Improve Transformer, 2020). Both [..., I].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// gelu(x + bias) in the tanh form (Hendrycks and Gimpel: Gaussian Error Linear Units, 2016, section 2), for
/// a product x without the bias that belongs to it. Backward sums the bias's gradient in the pass that gives
/// x's. x: [..., I], bias: [I] of x's type.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias);

/// What a loss has beside the cross-entropy, for each row that counts.
struct LossTerms {
  /// e: the target's probability is to be 1 - e, and e is spread evenly over the vocabulary (Szegedy et al.:
  /// Rethinking the Inception architecture, 2016, section 7).
  double label_smoothing = 0;
  /// z: z * log(sum of exp(logits))^2 is added, which keeps logits from growing (Chowdhery et al.: PaLM,
  /// 2022, section 5).
  double z_loss = 0;
};
/// The mean cross-entropy of logits x W^T, of which no more than some rows exist at a time, in x's type: each
/// chunk becomes its gradient in place and is multiplied on, in forward already. x: [N, D], weight: [V, D],
/// targets: [N] int64 -> [] fp32. Targets lie in [0, V); rows whose target is kIgnored do not count; of such
/// rows alone the loss is 0. It can be differentiated once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul, const LossTerms& terms = {});

/// Rows of such a chunk.
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary);

}  // namespace fsdp::kernels
