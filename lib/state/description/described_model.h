#pragma once

// What is written beside weights about their model: the description (config.json, or a checkpoint's
// manifest), and the small files (tokenizer, chat template, generation settings). Reads no weights.

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/families/options.h"

namespace fsdp::checkpoint {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

enum class WeightsFormat { kSafetensors, kGguf, kCheckpoint };

/// The format of a file, of a folder in Hugging Face's layout, of a step's folder or of a run's. kCheckpoint
/// for anything else, with the remedy for what is often given instead: a name on the Hugging Face hub,
/// checkpoints of torch.distributed.checkpoint, and other pickled PyTorch files, which are never read.
WeightsFormat format_of(const std::filesystem::path& path);

/// Whether a folder is a checkpoint of torch.distributed.checkpoint (state/dcp/dcp_folder.h).
inline constexpr const char* kDcpMetadataName = ".metadata";
bool is_dcp_folder(const std::filesystem::path& path);

struct DescribedModel {
  std::filesystem::path folder;  ///< the step's folder, or the one of Hugging Face's files
  std::string where;             ///< the file with the description
  nlohmann::json config;         ///< keys of Hugging Face, or those below
  /// Options in `config`. A plug-in's model has only the architecture; config::model_of() gives the rest.
  nn::ModelOptions options;
  std::string plugin_config;         ///< kPluginConfig; empty: the model is built in
  std::vector<std::string> plugins;  ///< kPluginNames
};

/// Keys of a plug-in's model, which Hugging Face's keys do not describe (setup/config/model_description.h): a
/// part of a configuration, and the shared libraries that the run had loaded.
inline constexpr const char* kPluginConfig = "fsdp_config";
inline constexpr const char* kPluginNames = "fsdp_plugins";

/// Sets options, plugin_config and plugins from model.config. Throws kCheckpoint as described_model() does.
void read_model_config(DescribedModel& model);

/// Reads the description of a step's folder, a run's (its newest complete checkpoint), a safetensors file
/// with config.json beside it, a folder in Hugging Face's layout, or a GGUF file. Returns nothing where there
/// is no description. Throws Error(kCheckpoint) if the path holds no weights, or a model that
/// options_from_hugging_face() refuses.
std::optional<DescribedModel> described_model(const std::filesystem::path& weights);

/// Path of config.json for such weights: in the folder, or beside the file.
std::filesystem::path config_beside(const std::filesystem::path& weights);

/// kCheckpoint when the file is not JSON or is too large for a config.
nlohmann::json read_config_json(const std::filesystem::path& path);

/// A run keeps copies of the small files that it is initialized from, so that they can be exported when the
/// original folder is gone: in this folder, inside the run's output folder, or inside a checkpoint that
/// belongs to no run.
inline constexpr const char* kModelFilesName = "model_files";

/// The small files of a model: name -> path.
using ModelFiles = std::map<std::string, std::filesystem::path>;

/// Those in a folder in Hugging Face's layout, recognized by transformers' names for them. Empty if the
/// folder does not exist. Symbolic links in a folder of copies (kModelFilesName) are left out with a warning.
ModelFiles model_files_in(const std::filesystem::path& folder);

/// Whether a file of this name is part of a tokenizer.
bool is_tokenizer_file(const std::string& name);

/// The folder of the copies for a step's folder: inside it, or in the run's folder around it. Empty if there
/// is none.
std::filesystem::path kept_model_files(const std::filesystem::path& checkpoint_folder);

/// Copies the files into a folder, which is created if there are any. kIo.
void copy_model_files(const ModelFiles& files, const std::filesystem::path& folder);

}  // namespace fsdp::checkpoint
