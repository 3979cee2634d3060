#pragma once

// What Hugging Face's config.json may say that this version cannot compute.

#include <nlohmann/json.hpp>
#include <string>

#include "nn/families.h"

namespace fsdp::checkpoint {

/// Throws one kCheckpoint, which begins with `where`, that lists all traits of the config that models of the family
/// have not.
void refuse_unsupported_traits(const nlohmann::json& config, const nn::Family& family,
                               const std::string& where);

/// How models of an unsupported "model_type" differ from ours; "" for unknown types.
std::string unsupported_type(const std::string& model_type);

}  // namespace fsdp::checkpoint
