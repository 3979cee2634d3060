#pragma once

// Well-known models by name: what model.preset puts in place of the defaults of [model].

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

struct ModelPreset {
  std::string name;
  std::string toml;  ///< a section [model]; keys that follow others may be left out
};

/// GPT-2 in its four sizes (Radford et al., 2019), llama2.c's stories15M and stories110M (Karpathy, 2023),
/// Llama 3 8B and 70B, Llama 3.2 1B and 3B (The Llama 3 herd of models, 2024), Qwen2.5 from 0.5B to 7B (its
/// technical report, 2024), SmolLM2 in its three sizes (2025), Mistral 7B (2023).
const std::vector<ModelPreset>& model_presets();

/// nullptr if there is none.
const ModelPreset* find_model_preset(std::string_view name);

}  // namespace fsdp::config
