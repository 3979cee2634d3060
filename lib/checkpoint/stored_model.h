#pragma once

// A model as it is stored, whatever the format: what it is, and its weights.

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/described_model.h"
#include "checkpoint/weights.h"

namespace fsdp::checkpoint {

struct StoredModel : DescribedModel {
  Weights weights;  ///< not read yet
  /// Of every parameter of the model: its name in `weights`. For the model of a plug-in of every tensor.
  std::map<std::string, std::string> names;
};

/// Of a checkpoint's step folder, a run's output folder (the newest complete checkpoint), a safetensors file
/// with config.json beside it, or a folder as Hugging Face lays it out. `ema`: a checkpoint's averages of
/// weights in place of these, where there are any. kCheckpoint when the path holds no such thing, does not
/// say what the model is, or its weights are not those of the model.
StoredModel open_model(const std::filesystem::path& path, bool ema = false);

}  // namespace fsdp::checkpoint
