#pragma once

// The divergence of a head's distributions from those of a teacher, for distillation. With p the model's and
// q the teacher's probabilities at a temperature, and b the interpolation:
//
//   b = 0       KL(q | p), the forward divergence (Hinton et al.: Distilling the knowledge in a neural
//               network, 2015)
//   b = 1       KL(p | q), the reverse divergence (Gu et al.: MiniLLM)
//   0 < b < 1   b KL(q | m) + (1 - b) KL(p | m), m = b q + (1 - b) p: the generalized Jensen-Shannon
//               divergence (Agarwal et al.: On-policy distillation of language models, 2024, equation 1)
//
// If only the teacher's likeliest tokens are known, all others count as one token, for teacher and model
// alike.

#include <ATen/core/Tensor.h>

#include "model/kernels/matmul.h"

namespace fsdp::kernels {

/// The teacher's distributions of N rows.
struct TeacherRows {
  at::Tensor logits = {};     ///< [N, V]; undefined: the likeliest tokens are known
  at::Tensor ids = {};        ///< the likeliest tokens, [N, k] int64
  at::Tensor log_probs = {};  ///< their log-probabilities at the temperature, [N, k] fp32
};

struct DivergenceTerms {
  double beta = 0.5;         ///< b above
  double temperature = 1;    ///< logits are divided by it
  double alpha = 1;          ///< weight of the divergence; that of the cross entropy is 1 - alpha
  double logit_cap = 0;      ///< as in LossTerms
  int64_t logits_bytes = 0;  ///< as in LossTerms
};

/// Returns each row's loss: alpha times the divergence plus 1 - alpha times the cross entropy of the target,
/// and 0 for rows whose target is ignored. The model's logits x W^T are computed in chunks of rows, in
/// forward and again in backward. x: [N, D], weight: [V, D], targets: [N] int64 -> [N] fp32. Can be
/// differentiated once.
at::Tensor linear_divergence(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                             const TeacherRows& teacher, const DivergenceTerms& terms, Matmul matmul);

/// Returns the same of the model's logits, [N, V], which autograd differentiates.
at::Tensor divergence_of_logits(const at::Tensor& logits, const at::Tensor& targets,
                                const TeacherRows& teacher, const DivergenceTerms& terms);

/// Returns the k likeliest tokens of each row and their log-probabilities. logits: [N, V]
TeacherRows likeliest_tokens(const at::Tensor& logits, int64_t k, double temperature);
/// The same of logits x W^T, which are computed in chunks of rows.
TeacherRows likeliest_tokens(const at::Tensor& x, const at::Tensor& weight, int64_t k,
                             const DivergenceTerms& terms, Matmul matmul);

}  // namespace fsdp::kernels
