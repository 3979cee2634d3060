#pragma once

// JSON that may come from anywhere.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::checkpoint {

/// JSON from text with a limit on nesting; throws Error(kCheckpoint) that starts with `where`. Refuses an
/// object of the outermost level that gives a key twice.
nlohmann::json parse_json(std::string_view text, int deepest_level, const std::string& where);

/// The same of a small file. kCheckpoint too when it is larger than any `what` ("config") is.
nlohmann::json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

}  // namespace fsdp::checkpoint
