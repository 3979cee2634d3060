#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config/config.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "nn/stage.h"

namespace fsdp::train {

/// What a model's predictions of validation samples are worth; the same on every rank.
struct Validation {
  double loss = 0;  ///< mean over all tokens, in nats
  int64_t samples = 0;
  int64_t tokens = 0;            ///< that were predicted
  std::optional<int64_t> bytes;  ///< of the text that they stand for, when that is known

  /// e^loss: among so many tokens, equally likely, the model would be as unsure.
  double perplexity() const;
  /// What a byte of the text costs when the model compresses it: comparable among tokenizers.
  std::optional<double> bits_per_byte() const;
};

/// What a validation may be given besides, alike on every rank.
struct ValidationHooks {
  const data::TokenBytes* bytes = nullptr;  ///< null: they are not counted
  /// Collective, asked between batches; true ends the validation.
  std::function<bool()> stop_requested = nullptr;
};

/// The same numbers at any world size, up to rounding; nothing when it was told to stop. Collective; nothing
/// is recorded for backward.
std::optional<Validation> validate(nn::Stage& model, const data::ValidationLoader& loader,
                                   comm::Communicator& communicator, const ValidationHooks& hooks = {});

/// "loss 1.8342, perplexity 6.26, 2.6462 bits per byte over 512 samples".
std::string validation_text(const Validation& validation);

/// For data.tokenizer; null, with a warning of the first rank, where it cannot be used, because losses need
/// none. Not collective.
std::unique_ptr<data::TokenBytes> token_bytes(const config::Config& config, bool is_first_rank);

/// Validates the weights of a checkpoint, a run's newest checkpoint, a safetensors file or a Hugging Face
/// folder on data.validation, sharded as the config says. Makes no optimizer and writes no file. Collective.
/// Throws Error(kUsage) when the config names no validation data, and what opening data and weights throws.
Validation evaluate(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                    const std::filesystem::path& weights);

}  // namespace fsdp::train
