#pragma once

// How likely a model finds a text that may be longer than its context.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/families/options.h"
#include "model/nn/stage.h"

namespace fsdp::generate {

struct ScoreOptions {
  int64_t window = 0;  ///< tokens that the model sees at once; 0: the longest sequence of the model
  /// Tokens by which the next window begins later; 0: half a window. Only the first window predicts tokens with
  /// less than window - stride tokens before them. A small stride costs more windows, and is more exact.
  int64_t stride = 0;
  c10::Device device = c10::kCPU;                  ///< of the model
  std::function<bool()> stop_requested = nullptr;  ///< asked before each window; true ends the scoring
};

struct Score {
  double nats = 0;     ///< negative log-likelihood of all predicted tokens
  int64_t tokens = 0;  ///< that were predicted: all but the first
  int64_t windows = 0;
  bool stopped = false;  ///< by stop_requested; the sums are of what was scored until then

  double nats_per_token() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
};

/// Predicts each of `ids` but the first, which has no context, once. Throws Error(kUsage) for fewer than two
/// ids, ids outside the vocabulary, a window beyond the positions of the model and a stride beyond the window;
/// Error(kDiverged) for scores that are not finite.
Score score(nn::Stage& model, const nn::ModelOptions& model_options, const std::vector<int64_t>& ids,
            const ScoreOptions& options = {});

}  // namespace fsdp::generate
