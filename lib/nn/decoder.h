#pragma once

// Decoder-only language models: token ids in, scores of the next token out.

#include <functional>
#include <memory>
#include <string>

#include "nn/architectures.h"
#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::nn {

/// How the models of an architecture are made.
struct ModelKind {
  /// A stage ids: [B, T] int64 -> logits: [B, T, vocab_size]. Its layers get their parameters from
  /// empty_parameter() (nn/parameter.h); those that libtorch's own modules allocate are replaced by ones on the
  /// device that is asked for.
  std::function<std::shared_ptr<Stage>(const ModelOptions&)> make;
  /// Throws Error(kUsage) for options that no such model can have. Null: all can be had.
  std::function<void(const ModelOptions&)> check = nullptr;
  /// Standard deviation of the first values of the matrix of this name. Null: initializer_range for all.
  std::function<double(const std::string& name, const ModelOptions&)> deviation = nullptr;
};

/// Adds one to those that ModelOptions::architecture can be. Throws Error(kUsage) for a name that is taken.
void register_model(const std::string& name, Architecture architecture, ModelKind kind);

/// Throws Error(kUsage) for an unknown name. Valid until the next register_model().
const ModelKind& model_kind(const std::string& architecture);

/// Builds options.architecture as a stage
///   ids: [B, T] int64 -> logits: [B, T, vocab_size],
/// the built-in ones with Hugging Face's parameter names.
/// Weights are uninitialised (see nn/initialize.h) and lie on `device`; on at::kMeta they have no memory,
/// whatever the size of the model is. Throws Error(kUsage) for shapes that no model can have (a hidden size
/// that the heads do not divide, ...).
std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device = at::kCPU);

/// Number of parameters, tied ones once.
int64_t count_parameters(const torch::nn::Module& module);

}  // namespace fsdp::nn
