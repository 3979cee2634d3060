#pragma once

// What a run remembers of the model that it began with, for exports of its checkpoints: the config with the
// keys that training does not know, and the small files beside it (checkpoint/described_model.h).

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/config.h"

namespace fsdp::train {

/// Where a run's first weights come from. At most one of the folders is not empty; of none, model.init_from
/// says it, or they are random.
struct ModelOrigin {
  std::filesystem::path resume{};  ///< the checkpoint that the run goes on from
  std::filesystem::path init{};    ///< that of checkpoint.init_from
};

/// Copies tokenizer and generation settings into the run's folder and returns the model's config with Hugging
/// Face's keys, for its checkpoints. The tokenizer is data.tokenizer's, where that names a path, and the
/// origin's otherwise. A run that goes on in its folder keeps what is there. To be called by one process.
/// What cannot be read is warned of and left out; kIo when the folder cannot be written.
nlohmann::json remember_model(const config::Config& config, const ModelOrigin& origin);

}  // namespace fsdp::train
