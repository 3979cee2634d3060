#pragma once

// A model as it is stored, whatever the format: what it is, and its weights.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/weights.h"
#include "nn/options.h"

namespace fsdp::checkpoint {

struct StoredModel {
  std::filesystem::path folder;  ///< that of the step or of Hugging Face's files
  nn::ModelOptions options;
  nlohmann::json config;                     ///< with Hugging Face's keys
  Weights weights;                           ///< not read yet
  std::map<std::string, std::string> names;  ///< of every parameter of the model: its name in `weights`
};

/// Of a checkpoint's step folder, a run's output folder (the newest complete checkpoint), a safetensors file
/// with config.json beside it, or a folder as Hugging Face lays it out. `ema`: a checkpoint's averages of
/// weights in place of these, where there are any. kCheckpoint when the path holds no such thing, does not
/// say what the model is, or its weights are not those of the model.
StoredModel open_model(const std::filesystem::path& path, bool ema = false);

}  // namespace fsdp::checkpoint
