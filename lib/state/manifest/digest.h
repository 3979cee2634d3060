#pragma once

// Hashes of whole files, their texts, and JSON within limits (base/util/json.h).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/util/json.h"

namespace fsdp::checkpoint {

/// The name of a file until it is complete: ".NAME.tmp" beside `path`.
std::filesystem::path temporary_name(const std::filesystem::path& path);

/// Size of a file in bytes and its XXH3 hash of 64 bits as 16 lower-case hexadecimal digits.
struct FileDigest {
  int64_t bytes = 0;
  std::string xxh3_64;
  bool operator==(const FileDigest&) const = default;
};

/// Computes the digest in bounded memory. `on_bytes` receives the number of bytes hashed since its last call.
FileDigest digest_file(const std::filesystem::path& path, const std::function<void(int64_t)>& on_bytes = {});

/// The XXH3 hash of a text, in the same form.
std::string xxh3_64_of(std::string_view text);

/// Reads a whole file of text. Throws Error(kCheckpoint) if it is larger than `largest_bytes`; `what`
/// ("config") is its kind in the message.
std::string read_text(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

/// Parses read_text() as JSON. This function and those below throw Error(kCheckpoint) that begins with the
/// name of the text if base/util/json.h refuses it.
nlohmann::json read_json(const std::filesystem::path& path, int64_t largest_bytes, const std::string& what);

void read_json_members(std::string_view text, const util::JsonLimits& limits, const std::string& where,
                       const std::function<void(std::string&& key, nlohmann::json&& value)>& on_member);

util::CanonicalJson canonical_json(std::string_view text, int deepest_level, const std::string& where);

}  // namespace fsdp::checkpoint
