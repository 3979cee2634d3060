#pragma once

// Hugging Face's description of a model, config.json, both ways.
// hugging_face_config_reader.cpp has the way in, hugging_face_config.cpp the way out.

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/families/options.h"

namespace fsdp::checkpoint {

/// The model's options as Hugging Face's config.json, so that exported weights load in transformers.
nlohmann::json hugging_face_config(const nn::ModelOptions& options);

/// The inverse, for hugging_face_types(), with transformers' defaults for missing keys. kCheckpoint that
/// starts with `where` for other models, for a key with a wrong type or an impossible value, and for
/// everything that this library's models do not have (other rotary scaling than ModelOptions::rope_type,
/// other activations, quantized weights, multipliers, experts, ...): the weights would load and compute
/// something else.
nn::ModelOptions options_from_hugging_face(const nlohmann::json& config, const std::string& where);

/// hugging_face_config(options) for weights that were initialized from a model whose Hugging Face config is
/// `source` (null: none). Everything in `source` is kept (family, ids of special tokens, type of the weights,
/// unknown keys) except what a run may change. If the two differ in what weights determine, only ids and type
/// are kept.
nlohmann::json inherited_config(const nn::ModelOptions& options, const nlohmann::json& source);

/// What transformers calls a model, and our name of its family.
struct HuggingFaceType {
  const char *model_type, *architecture, *model_class;
};
const std::vector<HuggingFaceType>& hugging_face_types();

/// The class of transformers with a language-model head, for a supported "model_type".
const char* causal_model_class(const nlohmann::json& model_type);

/// "torch_dtype", or "dtype" as newer releases call it; nothing where neither names a floating-point type.
std::optional<c10::ScalarType> dtype_of_config(const nlohmann::json& config);

/// Sets whichever of these two keys the config has; "torch_dtype" if none.
void set_dtype(nlohmann::json& config, c10::ScalarType dtype);

}  // namespace fsdp::checkpoint
