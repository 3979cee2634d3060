#pragma once

// Hugging Face's description of a model, both ways: config.json, and the names and shapes of its weights.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nn/options.h"

namespace fsdp::checkpoint {

/// The model's options as Hugging Face's config.json has them, so that exported weights load there.
nlohmann::json hugging_face_config(const nn::ModelOptions& options);

/// The inverse, for "model_type" gpt2, llama, mistral and qwen2, with the defaults of transformers for keys
/// that are left out. kCheckpoint that starts with `where` for other models, for a key that has another type
/// or an impossible value, and for settings that this library's models do not have (rotary positions scaled
/// in other ways than ModelOptions::rope_type, other activations, quantized weights): their weights would
/// load and compute something else.
nn::ModelOptions options_from_hugging_face(const nlohmann::json& config, const std::string& where);

/// Every weight that transformers saves for such a model, and its shape; a tied head has none. GPT-2's linear
/// layers are [in, out] (transformers' Conv1D), llama's [out, in].
std::map<std::string, std::vector<int64_t>> hugging_face_shapes(const nn::ModelOptions& options);

}  // namespace fsdp::checkpoint
