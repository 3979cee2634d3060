#pragma once

// Texts from a model, token by token, with a key-value cache (nn/key_value_cache.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "generate/options.h"
#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::generate {

enum class Ending {
  kEndOfText,  ///< the model chose one of the stop_ids
  kLength,     ///< max_new_tokens are there
  kTold,       ///< GenerationHooks::stop_requested
};

/// "end_of_text", "length" or "stopped".
const char* name_of(Ending ending);

struct Sample {
  std::vector<int64_t> ids;  ///< new tokens, without the prompt's and a stop id
  Ending ending = Ending::kLength;
  double seconds = 0;  ///< from the reading of the prompt to the last token; samples share their time

  double tokens_per_second() const { return static_cast<double>(ids.size()) / seconds; }
};

struct GenerationHooks {
  /// Hears of each new token of a sample, in order.
  std::function<void(int64_t sample, int64_t id)> on_token = nullptr;
  /// Asked after each token of the samples under way; true ends them, and no others begin.
  std::function<bool()> stop_requested = nullptr;
  /// For ranks of a sharded model: makes the chosen ids, [rows] int64, the same on all of them.
  std::function<void(at::Tensor& ids)> agree = nullptr;
};

/// `prompt` goes on options.num_samples times. The same prompt, options, weights and precision give the same
/// samples, whatever the number of threads. Returns those that were begun. At most kRowsAtOnce samples are
/// computed together; the others follow. Collective where the model is sharded; then `agree` is needed, and
/// the seed is rank 0's.
///
/// Throws Error(kUsage) for an empty prompt, ids outside the vocabulary, and a prompt and new tokens that are
/// more than the positions of the model together; Error(kDiverged) for weights that give no scores.
std::vector<Sample> generate(nn::Stage& model, const nn::ModelOptions& model_options,
                             const std::vector<int64_t>& prompt, const GenerationOptions& options,
                             const GenerationHooks& hooks = {});

inline constexpr int64_t kRowsAtOnce = 16;

}  // namespace fsdp::generate
