#pragma once

// Dropout in the stages of a model, only where the context asks for it.

#include "nn/stage.h"

namespace fsdp::nn {

/// The places of a decoder where values are dropped.
enum class DropoutPlace { kEmbedding, kAttentionScores, kAttentionOutput, kFeedForwardOutput };

/// x: [B, ...], whose row b belongs to the context's row b. x itself where nothing is dropped.
at::Tensor dropout(const at::Tensor& x, double p, DropoutPlace place, const StageContext& context);

}  // namespace fsdp::nn
