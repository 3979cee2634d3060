#pragma once

// Floating-point operations that a decoder's definition asks for, a multiplication and an addition being two.
// Counted are products of matrices: 2 a weight and token forward, and in attention 4 T D a token (T tokens in
// a row, D wide; the half that causality hides is counted). Norms, activations and the optimizer are not.

#include <cstdint>

#include "nn/options.h"

namespace fsdp::plan {

/// Of one token's forward.
struct TokenFlops {
  double attention = 0;     ///< of one block
  double feed_forward = 0;  ///< of one block
  double head = 0;
};

TokenFlops forward_flops(const nn::ModelOptions& model, int64_t sequence_length);

/// Forward and backward of one token through the whole model, without what recomputation adds: what model
/// FLOPs utilisation counts (Chowdhery et al.: PaLM, 2022, appendix B).
double model_flops_a_token(const nn::ModelOptions& model, int64_t sequence_length);

}  // namespace fsdp::plan
