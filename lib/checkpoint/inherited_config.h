#pragma once

// The config.json of a model that goes on from another one.

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/weights.h"
#include "nn/options.h"

namespace fsdp::checkpoint {

/// hugging_face_config(options) for weights that began as those of `source`, a config with Hugging Face's
/// keys, or null for none: all that it says stays (family, ids of special tokens, type of the weights, keys
/// that nothing is known of here) but what the run may change. Where the models differ in what weights
/// determine, ids and type alone stay.
nlohmann::json inherited_config(const nn::ModelOptions& options, const nlohmann::json& source);

/// The class of transformers with a language model's head, for a supported "model_type".
const char* causal_model_class(const nlohmann::json& model_type);

/// "torch_dtype", or "dtype" as newer releases call it; nothing where neither names a floating-point type.
std::optional<c10::ScalarType> dtype_of_config(const nlohmann::json& config);

/// Under the name that the config has for it.
void set_dtype(nlohmann::json& config, c10::ScalarType dtype);

/// The type that all floating-point tensors share.
std::optional<c10::ScalarType> common_dtype(const Weights& weights);

}  // namespace fsdp::checkpoint
