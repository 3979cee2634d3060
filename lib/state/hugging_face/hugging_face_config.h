#pragma once

// Hugging Face's description of a model, config.json: read by hugging_face_config_reader.cpp, written by
// hugging_face_config.cpp, both by the keys that model/families/family.h lists for each model type.

#include <torch/headeronly/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/families/options.h"

namespace fsdp::checkpoint {

/// The model's options as Hugging Face's config.json, so that exported weights load in transformers.
nlohmann::json hugging_face_config(const nn::ModelOptions& options);

/// The inverse, with transformers' defaults for missing keys. Throws Error(kCheckpoint), which starts with
/// `where`, for a "model_type" that no family has, for a key with a wrong type or an impossible value, and
/// for everything that this library's models do not have (other rotary scaling than ModelOptions::rope_type,
/// other activations, quantized weights, multipliers, ...), because the weights would load and compute
/// something else.
nn::ModelOptions options_from_hugging_face(const nlohmann::json& config, const std::string& where);

/// hugging_face_config(options) for weights that were initialized from a model with the config.json `source`
/// (null: none). Keeps everything in `source` (family, ids of special tokens, type of the weights, unknown
/// keys) except what a run may change. If the two differ in what weights determine, keeps only ids and type.
nlohmann::json inherited_config(const nn::ModelOptions& options, const nlohmann::json& source);

/// transformers' class with a language-model head for a supported "model_type".
std::string causal_model_class(const nlohmann::json& model_type);

/// The keys of config.json that nn::ModelType and nn::GgufArchitecture hold as text; "" has none.
nlohmann::json json_object(const std::string& text);

/// Type in "torch_dtype", or in "dtype" as newer releases call it; nothing where neither names a
/// floating-point type.
std::optional<c10::ScalarType> dtype_of_config(const nlohmann::json& config);

/// Sets whichever of these two keys the config has; "torch_dtype" if none.
void set_dtype(nlohmann::json& config, c10::ScalarType dtype);

}  // namespace fsdp::checkpoint
