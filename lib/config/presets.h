#pragma once

// Presets: well-known models for model.preset, and whole configurations for `fsdp-train init`, which configs/
// holds as files.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

struct ModelPreset {
  std::string name;
  std::string toml;  ///< a section [model]; may omit keys that follow others
};

/// GPT-2 in its four sizes (Radford et al., 2019), llama2.c's stories15M and stories110M (Karpathy, 2023),
/// Llama 3 8B and 70B, Llama 3.2 1B and 3B (The Llama 3 herd of models, 2024), Qwen2.5 from 0.5B to 7B (its
/// technical report, 2024), SmolLM2 in its three sizes (2025), Mistral 7B (2023).
const std::vector<ModelPreset>& model_presets();

/// nullptr if there is none.
const ModelPreset* find_model_preset(std::string_view name);

/// A key that a preset sets.
struct PresetValue {
  std::string key;        ///< full name
  std::string value;      ///< in TOML, as it is to be written
  std::string note = {};  ///< replaces the key's description, unless empty
};

struct Preset {
  std::string name;   ///< configs/NAME.toml
  std::string about;  ///< its purpose in one line
  std::string text;   ///< the paragraphs at the head of the file
  std::vector<PresetValue> values;
};

const std::vector<Preset>& all_presets();

std::vector<std::string> preset_names();

/// Throws util::Error(kUsage) that names the presets if there is none of that name.
const Preset& find_preset(std::string_view name);

/// "finetune" for the model in `folder`, which is Hugging Face's or a checkpoint: with its [model], its
/// tokenizer, and units and token files that suit its size. Error(kCheckpoint) for a folder that
/// model.init_from would refuse or that does not describe its model. Reads no weights.
Preset finetune_preset(const std::filesystem::path& folder);

enum class PresetKeys {
  kAll,    ///< those that the preset sets, and every other key with its default as a comment
  kGiven,  ///< only those that the preset sets
};

/// The preset as a commented config for load_config().
std::string preset_toml(const Preset& preset, PresetKeys keys = PresetKeys::kAll);

}  // namespace fsdp::config
