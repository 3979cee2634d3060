#pragma once

// Files beside token files that begin with a line of JSON, the key, and hold only for these data and options.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokens/mapped_file.h"
#include "data/tokens/output_file.h"

namespace fsdp::data {

/// The remedy for a file that is missing or does not fit.
inline constexpr const char* kComputeLogProbs = "compute it with fsdp-train reference-log-probs CONFIG";

/// Appends the line. model: name of the model that the numbers are of, for people.
void write_key(OutputFile& file, const nlohmann::json& key, const std::string& model);

/// Returns the byte after the line. Throws Error(kData) unless the file begins with a line whose "format",
/// "data" (data_identity.h) and `options` are those of `key`, and has `bytes` bytes after it.
int64_t read_key(const MappedFile& file, const nlohmann::json& key, const std::vector<std::string>& options,
                 int64_t bytes);

/// Throws Error(kData) if there is no file. what: the key of the config that needs it.
void require_keyed_file(const std::string& path, const std::string& what);

}  // namespace fsdp::data
