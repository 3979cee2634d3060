#pragma once

// Generates text with a model, token by token, with a key-value cache (model/nn/key_value_cache.h).

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/families/options.h"
#include "model/nn/stage.h"
#include "tools/generate/sampler.h"

namespace fsdp::generate {

struct GenerationOptions {
  SamplingOptions sampling{};
  int64_t max_new_tokens = 256;  ///< per sample
  int64_t num_samples = 1;
  uint64_t seed = 1234;
  std::vector<int64_t> stop_ids{};  ///< end a sample, without being part of it
  int64_t allowed_ids = 0;          ///< only ids below it are chosen; 0: all of the vocabulary
  c10::Device device = c10::kCPU;   ///< of the model
};

enum class Ending {
  kEndOfText,  ///< the model chose one of the stop_ids
  kLength,     ///< max_new_tokens are reached
  kStopped,    ///< GenerationHooks::stop_requested
};

/// "end_of_text", "length" or "stopped".
constexpr const char* name_of(Ending ending) {
  constexpr const char* kNames[] = {"end_of_text", "length", "stopped"};
  return kNames[static_cast<int>(ending)];
}

struct Sample {
  std::vector<int64_t> ids;  ///< new tokens, without the prompt and the stop id
  Ending ending = Ending::kLength;
  double seconds = 0;  ///< from the start of the prompt to the last token; samples computed together share it

  double tokens_per_second() const { return static_cast<double>(ids.size()) / seconds; }
};

struct GenerationHooks {
  /// Called for each new token of a sample, in order.
  std::function<void(int64_t sample, int64_t id)> on_token = nullptr;
  /// Called after each token of the current samples; true ends them, and no others begin.
  std::function<bool()> stop_requested = nullptr;
  /// For a sharded model: makes the chosen ids, [rows] int64, the same on all ranks.
  std::function<void(at::Tensor& ids)> agree = nullptr;
  /// Called with each input of the model, [rows, tokens] int64 on the device.
  std::function<void(const at::Tensor& ids)> on_input = nullptr;
};

/// Continues `prompt` options.num_samples times. The same prompt, options, weights and precision give the
/// same samples, whatever the number of threads. Returns the samples that were begun. At most kRowsAtOnce
/// samples are computed together; the others follow. Collective where the model is sharded; then `agree` is
/// needed, and the seed is rank 0's.
///
/// Throws Error(kUsage) for an empty prompt, ids outside the vocabulary, and a prompt and new tokens that
/// together exceed the positions of the model; Error(kDiverged) for weights whose scores are not numbers.
std::vector<Sample> generate(nn::Stage& model, const nn::ModelOptions& model_options,
                             const std::vector<int64_t>& prompt, const GenerationOptions& options,
                             const GenerationHooks& hooks = {});

inline constexpr int64_t kRowsAtOnce = 16;

/// Throws Error(kUsage) for ids that the model does not have.
void require_in_vocabulary(const std::vector<int64_t>& ids, const nn::ModelOptions& model);

}  // namespace fsdp::generate
