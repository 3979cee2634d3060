#pragma once

// The record of the model with which a run began, for exports of its checkpoints: the model's config with the
// keys that training does not know, and the small files beside it (state/description/described_model.h).

#include <filesystem>
#include <nlohmann/json.hpp>

#include "setup/config/config.h"

namespace fsdp::train {

/// The origin of a run's first weights. At most one of the folders is not empty; if both are empty, the
/// weights are those of model.init_from or random.
struct ModelOrigin {
  std::filesystem::path resume{};  ///< the checkpoint that the run resumes from
  std::filesystem::path init{};    ///< the checkpoint of checkpoint.init_from
};

/// Copies tokenizer and generation settings into the run's folder and returns the model's config with Hugging
/// Face's keys, for its checkpoints. The tokenizer is data.tokenizer, where that is a path, and the origin's
/// otherwise. A run that resumes in its own folder keeps the files there. Warns about files that cannot be
/// read and leaves them out. Requires: called by one process of the run. Throws Error(kIo) if the folder
/// cannot be written.
nlohmann::json remember_model(const config::Config& config, const ModelOrigin& origin);

}  // namespace fsdp::train
