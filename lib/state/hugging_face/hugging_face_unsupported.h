#pragma once

// What Hugging Face's config.json may say that this version cannot compute.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/families/families.h"

namespace fsdp::checkpoint {

/// Throws one kCheckpoint, which begins with `where`, that lists all traits of the config that models of the
/// family have not.
void refuse_unsupported_traits(const nlohmann::json& config, const nn::Family& family,
                               const std::string& where);

/// Keys of the config that change nothing a supported model computes from its weights: names, ids, how text
/// is generated, and what the weights themselves show; and those that refuse_unsupported_traits() has looked
/// at.
std::vector<std::string> keys_without_effect(const nlohmann::json& config);

/// `"KEY": VALUE`, shortened.
std::string shown_entry(const std::string& key, const nlohmann::json& value);

/// Reports entries of the config that this version does not know. The classes of transformers ignore such
/// keys, so each is named in a warning, once in a process. Throws Error(kCheckpoint) if `has_own_code`,
/// because code that comes with the model may read them.
void report_unknown_keys(const std::vector<std::string>& entries, bool has_own_code,
                         const std::string& where);

/// How models of an unsupported "model_type" differ from ours; "" for unknown types.
std::string unsupported_type(const std::string& model_type);

}  // namespace fsdp::checkpoint
