#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "data/tokenizer.h"
#include "nn/stage.h"

namespace fsdp::train {

/// Texts of a model in training (logging.sample_every), to see what it has learnt. Every text is sampled from
/// the same prompt with the same random numbers (run.seed), so that texts of different steps can be compared.
class SampleText {
 public:
  /// Throws Error(kUsage) or Error(kData) for a data.tokenizer that cannot be used, a logging.sample_prompt
  /// outside the model's vocabulary, and texts longer than the positions of the model.
  explicit SampleText(const config::Config& config);

  /// The prompt and what the model makes of it, with the parameters as they are sharded: one forward a token.
  /// The same on all ranks; nothing when `stop_requested`, which is collective and asked after each token,
  /// said so. Leaves everything that training depends on as it is. Collective.
  std::optional<std::string> of(nn::Stage& model, comm::Communicator& communicator,
                                std::function<bool()> stop_requested = nullptr) const;

 private:
  nn::ModelOptions model_;
  std::string prompt_;
  int64_t tokens_;
  uint64_t seed_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<int64_t> ids_;  ///< of the prompt
};

}  // namespace fsdp::train
