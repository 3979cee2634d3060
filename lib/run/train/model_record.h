#pragma once

// What a run remembers of the model that it began with, for exports of its checkpoints: the config with the
// keys that training does not know, and the small files beside it (state/hugging_face/described_model.h).

#include <filesystem>
#include <nlohmann/json.hpp>

#include "setup/config/config.h"

namespace fsdp::train {

/// Where a run's first weights come from. At most one of the folders is not empty; if both are, the weights
/// are those of model.init_from or random.
struct ModelOrigin {
  std::filesystem::path resume{};  ///< the checkpoint that the run resumes from
  std::filesystem::path init{};    ///< the checkpoint of checkpoint.init_from
};

/// Copies tokenizer and generation settings into the run's folder and returns the model's config with Hugging
/// Face's keys, for its checkpoints. The tokenizer is data.tokenizer, where that is a path, and the origin's
/// otherwise. A run that resumes in its own folder keeps the files there. For one process of the run. Warns
/// about files that cannot be read and leaves them out; throws Error(kIo) when the folder cannot be written.
nlohmann::json remember_model(const config::Config& config, const ModelOrigin& origin);

}  // namespace fsdp::train
