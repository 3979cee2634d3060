#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "data/tokenizers/tokenizer.h"
#include "model/nn/stage.h"
#include "setup/config/config.h"

namespace fsdp::train {

/// Samples texts from a model during training (logging.sample_every). Every text has the same prompt and the
/// same random numbers (run.seed), so that texts of different steps can be compared.
class SampleText {
 public:
  /// Throws Error(kUsage) or Error(kData) for a data.tokenizer that cannot be used, a logging.sample_prompt
  /// with tokens outside the model's vocabulary, and texts that are longer than the model has positions.
  explicit SampleText(const config::Config& config);

  /// Returns the prompt and its continuation by the sharded model, by one forward per token. The text is the
  /// same on all ranks; nullopt if `stop_requested`, which is collective and called after each token,
  /// returned true. Changes nothing on which training depends. `on_input`: see generate::GenerationHooks.
  /// Collective.
  std::optional<std::string> of(nn::Stage& model, comm::Communicator& communicator,
                                std::function<bool()> stop_requested = nullptr,
                                std::function<void(const at::Tensor& ids)> on_input = nullptr) const;

 private:
  nn::ModelOptions model_;
  std::string prompt_;
  int64_t tokens_;
  uint64_t seed_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<int64_t> ids_;  ///< ids of the prompt
};

}  // namespace fsdp::train
