#pragma once

// The operations between the matrix products of a transformer, each with one pass over memory in forward and
// one in backward, instead of the many passes of composed libtorch operations. Arithmetic within a kernel is
// in fp32; results are rounded to the type of the input once. Gradients of weights and biases are summed in
// fp32, in an order that does not depend on the number of threads, and added to the parameters' gradient
// places, if any (gradient_sink.h).
//
// On a GPU (cuda/) no function waits for the device, and the order of sums does not depend on scheduling.
//
// Backward computes results of norms and activations again (recomputed.h): on the CPU always, which takes less time
// than there is noise in a step's, elsewhere if they are `recomputed`.
//
// All functions support autograd (first derivatives). Except embedding() and dropout(), they require tensors
// that can_fuse() accepts; lib/model/nn composes libtorch's operations for others.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "model/kernels/matmul.h"
#include "model/kernels/rows.h"

namespace fsdp::kernels {

/// Whether there are kernels for the tensor's device and type: fp32, bf16 and fp16, on the CPU, on meta
/// (model/kernels/meta.h) and, in programs built with CUDA, on CUDA devices.
bool can_fuse(const at::Tensor& x);

/// Zhang and Sennrich: Root Mean Square Layer Normalization, 2019. x: [..., D], weight: [D] of x's type.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool recomputed = false);

/// {x + residual, rms_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon,
                                               bool recomputed = false);

/// Ba, Kiros and Hinton: Layer Normalization, 2016. x: [..., D]; weight, bias: [D] of x's type.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      bool recomputed = false);

/// {x + residual, layer_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double epsilon, bool recomputed = false);

/// Su et al.: RoFormer, 2021, with the halves of a head as the pairs (Llama).
/// x: [B, T, heads, head_dim]; cos, sin: [T, head_dim] fp32, halves alike.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up (Shazeer: GLU Variants Improve Transformer, 2020). Both [..., I].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, bool recomputed = false);

/// gelu(x + bias) in the tanh form (Hendrycks and Gimpel: Gaussian Error Linear Units, 2016, section 2), for
/// a product x whose bias was not added yet. x: [..., I], bias: [I] of x's type.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool recomputed = false);

/// x + bias. x: [..., D], bias: [D] of x's type. Unlike libtorch, sums the bias's gradient in the order of these kernels.
at::Tensor add_bias(const at::Tensor& x, const at::Tensor& bias);

/// Modifications of the cross-entropy of each row that counts.
struct LossTerms {
  /// e: mixes the target, with weight 1 - e, with the uniform distribution (Szegedy et al.: Rethinking the
  /// Inception architecture, 2016, section 7).
  double label_smoothing = 0;
  /// z: adds z * log(sum of exp(logits))^2 to keep logits small (Chowdhery et al.: PaLM, 2022, section 5).
  double z_loss = 0;
  /// Logits l become cap tanh(l / cap) before all else; 0: none.
  double logit_cap = 0;
  /// The gradient that backward will get for the loss. Forward multiplies by it before it rounds, so that a
  /// loss scale keeps small gradients in fp16 from becoming 0; backward corrects what differs.
  double expected_gradient = 1;
};
/// A weight that has a part of the vocabulary's rows (parallel/cross_entropy.h). The loss is that of the whole
/// vocabulary, and so are the gradients, x's being the part's share of it.
struct VocabularyPart {
  int64_t first = 0;  ///< token of the first row
  int64_t whole = 0;  ///< size of the whole vocabulary
  int64_t most = 0;   ///< rows of the largest part, which decides on the chunks of all
  /// Is called once for each chunk, with its RowStatistics (rows.h) as [rows, 4] fp64, of this part; they are
  /// to become those of the whole vocabulary.
  std::function<void(const at::Tensor& statistics)> combine = nullptr;
};

/// The mean cross-entropy of logits x W^T, which are computed in chunks of rows, in x's type: forward already
/// overwrites each chunk with its gradient and multiplies it on; on the CPU, the only chunk of fewer rows than x has
/// columns is kept for W's gradient instead. x: [N, D], weight: [V, D], targets: [N]
/// int64 -> [] fp32. Targets are in [0, V) or kIgnored; ignored rows do not count, and if all are ignored,
/// the loss is 0. Can be differentiated once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul, const LossTerms& terms = {},
                                const VocabularyPart* part = nullptr);

/// Rows of such a chunk for an x [N, D] of this device and type.
int64_t cross_entropy_chunk_rows(const at::Tensor& x, int64_t vocabulary);
/// On the CPU.
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary);

/// The rows `ids` of a table. weight: [V, D], ids: [...] int64 in [0, V) -> [..., D]. Gradients of rows are
/// added to the table's gradient place (gradient_sink.h); without one, or for types that can_fuse() does not
/// accept, the gradient is a new table.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

/// Dropout (Srivastava et al., 2014): each value of x becomes 0 with probability p, 0 <= p < 1, and x / (1 -
/// p) otherwise. The choice for value i of row r, the r-th along dimension 0, is a function of (key,
/// first_row + r, i), not of a generator's state: a recomputed or resumed step drops the same values, on any
/// number of ranks and threads, and nothing is kept for backward.
at::Tensor dropout(const at::Tensor& x, double p, uint64_t key, int64_t first_row,
                   const RowPieces& pieces = {});

}  // namespace fsdp::kernels
