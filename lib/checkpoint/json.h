#pragma once

// util/json.h for the files of a checkpoint: what it refuses is an Error(kCheckpoint) that starts with
// `where`, the name of the text.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "util/json.h"

namespace fsdp::checkpoint {

nlohmann::json parse_json(std::string_view text, int deepest_level, const std::string& where);

/// The same of a small file. kCheckpoint too when it is larger than any `what` ("config") is.
nlohmann::json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where);

}  // namespace fsdp::checkpoint
