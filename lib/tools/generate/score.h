#pragma once

// The likelihood of a text under a model. The text may be longer than the model's context.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/families/options.h"
#include "model/nn/stage.h"

namespace fsdp::generate {

struct ScoreOptions {
  int64_t window = 0;  ///< number of tokens that the model sees at once; 0: the model's longest sequence
  /// Distance in tokens between the beginnings of windows. 0: half a window. Only the first window predicts
  /// tokens with less than window - stride tokens before them. A smaller stride is more exact and needs more
  /// windows.
  int64_t stride = 0;
  c10::Device device = c10::kCPU;  ///< device of the model
  /// Called before each window; returning true ends the scoring.
  std::function<bool()> stop_requested = nullptr;
};

struct Score {
  double nats = 0;     ///< negative log-likelihood of all predicted tokens
  int64_t tokens = 0;  ///< number of predicted tokens: all but the first
  int64_t windows = 0;
  bool stopped = false;  ///< whether stop_requested ended the scoring early; the sums cover the scored part

  double nats_per_token() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
};

/// Predicts each of `ids` once, except the first, which has no context. Throws Error(kUsage) for fewer than
/// two ids, ids outside the vocabulary, a window beyond the positions of the model and a stride beyond the
/// window, and Error(kDiverged) for scores that are not finite.
Score score(nn::Stage& model, const nn::ModelOptions& model_options, const std::vector<int64_t>& ids,
            const ScoreOptions& options = {});

}  // namespace fsdp::generate
