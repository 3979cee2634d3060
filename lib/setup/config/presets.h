#pragma once

// Presets: well-known models for model.preset, and whole configurations for `fsdp-train init`.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

struct ModelPreset {
  std::string name;
  std::string toml;  ///< a section [model], which may omit keys that follow others
};

/// The models of lib/model/families/presets, in the order of its files.
const std::vector<ModelPreset>& model_presets();

/// Returns null if there is none.
const ModelPreset* find_model_preset(std::string_view name);

/// A file of configs/, which the build embeds (CMakeLists.txt of this folder).
struct Preset {
  std::string name;   ///< configs/NAME.toml
  std::string about;  ///< its purpose: the first line of the file, without the full stop
  std::string text;   ///< the file
};

const std::vector<Preset>& all_presets();

std::vector<std::string> preset_names();

/// Throws Error(kUsage), which lists the presets, if there is none of that name.
const Preset& find_preset(std::string_view name);

/// Presets that begin with the weights of a model.
inline constexpr const char* kFinetune = "finetune";
inline constexpr const char* kChats = "chats";

/// One of these presets for the model at `path`, which is Hugging Face's folder, a GGUF file or a checkpoint:
/// with its [model], its tokenizer, and units and token files that suit its size. Error(kCheckpoint) for a
/// path that model.init_from would refuse or that does not describe its model. Reads no weights.
std::string tuning_toml(const std::string& preset, const std::filesystem::path& path);

}  // namespace fsdp::config
