#pragma once

// Configurations to begin with, for `fsdp-train init`; configs/ holds each as a file.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

/// A key that a preset sets.
struct PresetValue {
  std::string key;    ///< full name
  std::string value;  ///< in TOML, as it is to be written
  std::string note;   ///< said in place of the key's own description; empty: that
};

struct Preset {
  std::string name;   ///< configs/NAME.toml
  std::string about;  ///< one line: for what it is
  std::string text;   ///< the paragraphs at the head of the file
  std::vector<PresetValue> values;
};

const std::vector<Preset>& all_presets();

std::vector<std::string> preset_names();

/// Throws util::Error(kUsage) that names the presets if there is none of that name.
const Preset& find_preset(std::string_view name);

/// "finetune" for the model in `folder`, which is Hugging Face's or a checkpoint: all of [model] from what is
/// written there, its tokenizer, and units and token files that suit its size. Error(kCheckpoint) for a
/// folder that model.init_from would refuse, or that does not say what its model is. Reads no weights.
Preset finetune_preset(const std::filesystem::path& folder);

enum class PresetKeys {
  kAll,    ///< what the preset sets, and every other key with its default as a comment
  kGiven,  ///< what it sets alone
};

/// The preset as a commented config. load_config() reads it.
std::string preset_toml(const Preset& preset, PresetKeys keys = PresetKeys::kAll);

}  // namespace fsdp::config
