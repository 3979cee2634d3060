#pragma once

// The operations between the matrix products of a transformer, each with one pass over memory in forward and
// one in backward, instead of the many passes of composed libtorch operations. Arithmetic within a kernel is
// in fp32; results are rounded to the type of the input once. Gradients of weights and biases are summed in
// fp32, in an order that does not depend on the number of threads, and added to the parameters' gradient
// places, if any (gradient_sink.h).
//
// On a GPU (cuda/) no function waits for the device, and the order of sums does not depend on scheduling.
//
// Backward computes results of norms and activations again (recomputed.h): on the CPU always, because it
// costs almost no time there, elsewhere if they are `recomputed`.
//
// All functions support autograd (first derivatives). All except embedding() and dropout() require tensors
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

/// RMSNorm (Zhang and Sennrich: Root Mean Square Layer Normalization, 2019). x: [..., D]; weight: [D].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool recomputed = false);

/// Returns {x + residual, rms_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon,
                                               bool recomputed = false);

/// Returns {x, rms_norm(x)}. Whoever also needs x uses the first result instead: backward of the norm then
/// adds its gradient in the same pass, before it rounds, where autograd would add two rounded gradients.
std::pair<at::Tensor, at::Tensor> rms_norm_beside(const at::Tensor& x, const at::Tensor& weight,
                                                  double epsilon, bool recomputed = false);

/// LayerNorm (Ba, Kiros and Hinton: Layer Normalization, 2016). x: [..., D]; weight, bias: [D] of x's type.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      bool recomputed = false);

/// Returns {x + residual, layer_norm(x + residual)}, all [..., D].
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double epsilon, bool recomputed = false);

/// Returns {x, layer_norm(x)}, as rms_norm_beside() does.
std::pair<at::Tensor, at::Tensor> layer_norm_beside(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias, double epsilon,
                                                    bool recomputed = false);

/// Rotary position embedding (Su et al.: RoFormer, 2021) with the halves of a head as the pairs (Llama). x:
/// [B, T, heads, head_dim]; cos, sin: [T, head_dim] fp32 with two equal halves.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// Returns silu(gate) * up (Shazeer: GLU Variants Improve Transformer, 2020). Both are [..., I].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, bool recomputed = false);

/// Returns gelu(x + bias) in the tanh form (Hendrycks and Gimpel: Gaussian Error Linear Units, 2016, section
/// 2), for a product x whose bias was not added yet. x: [..., I], bias: [I] of x's type.
at::Tensor bias_gelu(const at::Tensor& x, const at::Tensor& bias, bool recomputed = false);

/// Returns x + bias. Sums the bias's gradient in the order of these kernels. x: [..., D], bias: [D].
at::Tensor add_bias(const at::Tensor& x, const at::Tensor& bias);

/// Bytes of logits in memory at a time on a GPU. More than on the CPU, because each chunk reads the weight
/// twice and its gradient once.
inline constexpr int64_t kDeviceLogitsBytes = 512 << 20;

/// Modifications of the cross-entropy of each row that counts, and the memory that it may take.
struct LossTerms {
  /// e: the target, with weight 1 - e, is mixed with the uniform distribution (Szegedy et al.: Rethinking the
  /// Inception architecture, 2016, section 7).
  double label_smoothing = 0;
  /// z: z * log(sum of exp(logits))^2 is added, to keep logits small (Chowdhery et al.: PaLM, 2022, 5).
  double z_loss = 0;
  /// Logits l first become cap tanh(l / cap); 0: no cap.
  double logit_cap = 0;
  /// Bytes of logits in memory at a time on a GPU.
  int64_t logits_bytes = kDeviceLogitsBytes;
  /// The gradient that backward will receive for the loss. Forward multiplies by it before rounding, so that
  /// a loss scale keeps small gradients in fp16 from becoming 0; backward corrects a difference.
  double expected_gradient = 1;
};
/// A weight that has a part of the vocabulary's rows (parallel/vocabulary.h). The loss is that of the whole
/// vocabulary, and so are the gradients, except that x's gradient is the part's share of it.
struct VocabularyPart {
  int64_t first = 0;  ///< token that the first row is for
  int64_t whole = 0;  ///< size of the whole vocabulary
  int64_t most = 0;   ///< rows of the largest part, which determines the chunks of all parts
  /// Called once for each chunk, with its RowStatistics (rows.h) as [rows, 4] fp64, of this part. Replaces
  /// them by those of the whole vocabulary.
  std::function<void(const at::Tensor& statistics)> combine = nullptr;
};

/// Returns the mean cross-entropy of logits x W^T, which are computed in chunks of rows, in x's type. Forward
/// already overwrites each chunk with its gradient and multiplies it by the weight. A single chunk, which on
/// the CPU must have fewer rows than x has columns, is kept for W's gradient instead. x: [N, D], weight: [V,
/// D], targets: [N] int64 -> [] fp32. Targets are in [0, V) or kIgnored; ignored rows do not count, and if
/// all are ignored, the loss is 0. Can be differentiated once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                Matmul matmul, const LossTerms& terms = {},
                                const VocabularyPart* part = nullptr);

/// Log-probabilities of tokens.
struct TokenLogProbs {
  at::Tensor log_probs;  ///< [N] fp32; 0 for ignored rows
  at::Tensor is_most;    ///< [N] bool: whether no token is likelier; false for ignored rows
};

/// Returns the log-probabilities of the targets by softmax(x W^T), for losses that need them one by one. The
/// logits are computed in chunks of rows, in forward and again in backward, which multiplies their gradients
/// by those of the results; no chunk is kept. Arguments are those of linear_cross_entropy(); of the terms
/// only logit_cap and logits_bytes matter. Can be differentiated once.
TokenLogProbs linear_log_probs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                               Matmul matmul, const LossTerms& terms = {},
                               const VocabularyPart* part = nullptr);

/// Returns the rows of such a chunk for an x [N, D] of this device and type, with so many bytes on a GPU.
int64_t cross_entropy_chunk_rows(const at::Tensor& x, int64_t vocabulary, int64_t device_bytes);
/// Returns the elements from a row of logits to the next on a GPU.
int64_t device_logits_stride(int64_t vocabulary);
/// Returns the rows of such a chunk on the CPU.
int64_t cross_entropy_chunk_rows(int64_t rows, int64_t vocabulary);

/// Returns the rows `ids` of a table. weight: [V, D], ids: [...] int64 in [0, V) -> [..., D]. Gradients of
/// rows are added to the table's gradient place (gradient_sink.h). Without a place, or for types that
/// can_fuse() does not accept, the gradient is a new table.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

/// Dropout (Srivastava et al., 2014): each value of x becomes 0 with probability p, 0 <= p < 1, and x / (1 -
/// p) otherwise. The choice for value i of row r, the r-th along dimension 0, is a function of (key,
/// first_row + r, i), not of a generator's state. A recomputed or resumed step therefore drops the same
/// values, on any number of ranks and threads, and nothing is kept for backward.
at::Tensor dropout(const at::Tensor& x, double p, uint64_t key, int64_t first_row,
                   const RowPieces& pieces = {});

}  // namespace fsdp::kernels
