#pragma once

// Decoder-only language models: token ids in, scores of the next token out.

#include <memory>

#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// Builds options.architecture with Hugging Face's parameter names, as a stage
///   ids: [B, T] int64 -> logits: [B, T, vocab_size].
/// Weights are uninitialised (see nn/initialize.h) and lie on `device`; on at::kMeta they have no memory,
/// whatever the size of the model is. Throws Error(kUsage) for shapes that no model can have (a hidden size
/// that the heads do not divide, ...).
std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device = at::kCPU);

/// Number of parameters, tied ones once.
int64_t count_parameters(const torch::nn::Module& module);

}  // namespace fsdp::nn
