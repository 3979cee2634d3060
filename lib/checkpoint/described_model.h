#pragma once

// What is written beside weights about the model that they are of: config.json, or a checkpoint's manifest.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "nn/options.h"

namespace fsdp::checkpoint {

struct DescribedModel {
  std::filesystem::path folder;  ///< that of the step or of Hugging Face's files
  std::string where;             ///< the file that says it
  nlohmann::json config;         ///< with Hugging Face's keys, or those below
  /// Of these. For the model of a plug-in no more than its architecture: config::model_of() knows the rest.
  nn::ModelOptions options;
  std::string plugin_config;         ///< kPluginConfig; empty: the model is built in
  std::vector<std::string> plugins;  ///< kPluginNames
};

/// Keys of a plug-in's model, which Hugging Face's keys do not describe (config/model_description.h): a part of
/// a configuration, and the shared libraries that the run had loaded.
inline constexpr const char* kPluginConfig = "fsdp_config";
inline constexpr const char* kPluginNames = "fsdp_plugins";

/// Sets options, plugin_config and plugins as model.config says. Throws kCheckpoint as described_model() does.
void read_model_config(DescribedModel& model);

/// Of a step's folder, a run's (its newest complete checkpoint), a safetensors file with config.json beside
/// it, or a folder as Hugging Face lays it out. Nothing where it is not written down. Reads no weights.
/// kCheckpoint when the path holds no weights, or for a model that options_from_hugging_face() refuses.
std::optional<DescribedModel> described_model(const std::filesystem::path& weights);

/// Where config.json of such weights lies: in the folder, or beside the file.
std::filesystem::path config_beside(const std::filesystem::path& weights);

/// kCheckpoint when the file is no JSON or too large for a config.
nlohmann::json read_config_json(const std::filesystem::path& path);

}  // namespace fsdp::checkpoint
