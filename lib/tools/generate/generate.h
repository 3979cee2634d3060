#pragma once

// Generates text with a model token by token, using a key-value cache (model/nn/key_value_cache.h).

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
  int64_t max_new_tokens = 256;  ///< most new tokens of a sample
  int64_t num_samples = 1;
  uint64_t seed = 1234;
  std::vector<int64_t> stop_ids{};  ///< tokens that end a sample and are not part of it
  int64_t allowed_ids = 0;          ///< only ids below it are chosen; 0: the whole vocabulary
  c10::Device device = c10::kCPU;   ///< device of the model
};

enum class Ending {
  kEndOfText,  ///< the model chose one of the stop_ids
  kLength,     ///< the sample has max_new_tokens
  kStopped,    ///< GenerationHooks::stop_requested returned true
};

/// Name of an ending: "end_of_text", "length" or "stopped".
constexpr const char* name_of(Ending ending) {
  constexpr const char* kNames[] = {"end_of_text", "length", "stopped"};
  return kNames[static_cast<int>(ending)];
}

struct Sample {
  std::vector<int64_t> ids;  ///< new tokens, without the prompt and the stop id
  Ending ending = Ending::kLength;
  /// Time from the start of the prompt to the last token; equal for samples computed together.
  double seconds = 0;

  double tokens_per_second() const { return static_cast<double>(ids.size()) / seconds; }
};

struct GenerationHooks {
  /// Called for each new token of a sample, in order.
  std::function<void(int64_t sample, int64_t id)> on_token = nullptr;
  /// Called after each token of the current samples. Returning true ends them, and no other samples begin.
  std::function<bool()> stop_requested = nullptr;
  /// Makes the chosen ids, [rows] int64, the same on all ranks of a sharded model.
  std::function<void(at::Tensor& ids)> agree = nullptr;
  /// Called with each input of the model, [rows, tokens] int64 on the device.
  std::function<void(const at::Tensor& ids)> on_input = nullptr;
};

/// Continues `prompt` options.num_samples times and returns the samples that were begun. The same prompt,
/// options, weights and precision give the same samples for any number of threads. At most kRowsAtOnce
/// samples are computed together; the others follow. Collective if the model is sharded: `agree` is required
/// then, and rank 0's seed is used.
///
/// Throws Error(kUsage) for an empty prompt, ids outside the vocabulary, and a prompt and new tokens that
/// together exceed the positions of the model, and Error(kDiverged) for weights whose scores are not numbers.
std::vector<Sample> generate(nn::Stage& model, const nn::ModelOptions& model_options,
                             const std::vector<int64_t>& prompt, const GenerationOptions& options,
                             const GenerationHooks& hooks = {});

inline constexpr int64_t kRowsAtOnce = 16;

/// Throws Error(kUsage) for ids outside the model's vocabulary.
void require_in_vocabulary(const std::vector<int64_t>& ids, const nn::ModelOptions& model);

}  // namespace fsdp::generate
