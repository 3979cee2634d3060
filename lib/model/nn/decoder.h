#pragma once

// Decoder-only language models: token ids in, scores of the next token out.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "model/families/architectures.h"
#include "model/families/options.h"
#include "model/families/parameter_part.h"
#include "model/nn/parallel_plan.h"
#include "model/nn/stage.h"

namespace fsdp::nn {

/// Functions that make the models of an architecture.
struct ModelKind {
  /// A stage ids: [B, T] int64 -> logits: [B, T, vocab_size]. Its layers get their parameters from
  /// empty_parameter() (model/nn/parameter.h); parameters that libtorch's own modules allocate are moved to
  /// the requested device afterwards.
  std::function<std::shared_ptr<Stage>(const ModelOptions&)> make;
  /// Throws Error(kUsage) for options that are invalid for this architecture. Null: all are valid.
  std::function<void(const ModelOptions&)> check = nullptr;
  /// Standard deviation of the initial values of the matrix of this name. Null: initializer_range for all.
  std::function<double(const std::string& name, const ModelOptions&)> deviation = nullptr;
  /// Plan by which several ranks compute the model (parallelize()). Null: they cannot.
  std::function<ParallelPlan(const ModelOptions&, const ParallelOptions&)> plan = nullptr;
};

/// Adds a name for ModelOptions::architecture. Throws Error(kUsage) if it is taken.
void register_model(const std::string& name, Architecture architecture, ModelKind kind);

/// Returns the functions of an architecture, valid until the next register_model(). Throws Error(kUsage) for
/// an unknown name.
const ModelKind& model_kind(const std::string& architecture);

/// Builds options.architecture as a stage
///   ids: [B, T] int64 -> logits: [B, T, vocab_size],
/// where built-in architectures have Hugging Face's names (model/families/families.h), and the buffers
/// model.rotary_emb.{cos, sin} of rotary positions.
/// Weights are uninitialised (see model/nn/initialize.h) and lie on `device`; on at::kMeta they have no
/// memory. Throws Error(kUsage) for invalid shapes (a hidden size that the heads do not divide, ...).
std::shared_ptr<Stage> make_decoder(const ModelOptions& options, at::Device device = at::kCPU);

/// Calls parallelize() with the plan of options.architecture. A group of one rank changes nothing and has no
/// parts. Throws Error(kUsage) as parallelize() does, and for an architecture without a plan.
std::vector<ParameterPart> parallelize_decoder(Stage& decoder, const ModelOptions& options,
                                               const ParallelOptions& parallel,
                                               std::shared_ptr<comm::Communicator> group);

/// Number of elements of all parameters; a tied parameter counts once.
int64_t count_parameters(const torch::nn::Module& module);

}  // namespace fsdp::nn
