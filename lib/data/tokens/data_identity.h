#pragma once

// Identity of sets of token files, computed without reading them whole, so that a run that resumes detects
// that its data differ from those it was trained on.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "data/tokens/token_files.h"

namespace fsdp::data {

/// Returns one object of an identity. `hash` covers samples of the tokens and documents.
nlohmann::json identity_entry(const std::string& name, int64_t tokens, int64_t documents, uint64_t hash);

/// Returns a list with one object per file: its name without folder (since data may be moved), its numbers of
/// tokens and of documents, and a hash of samples of both: the beginning, the end, and blocks spread evenly
/// between. Files of up to 128 Ki tokens are hashed whole. Throws Error(kData) as TokenFiles::read() does.
nlohmann::json identity_of(const TokenFiles& files);

/// Describes the first file that differs, is missing or is new; nothing if the files are the same in the same
/// order, whatever their names. `found` is from identity_of(). `recorded` may be untrusted, and any JSON.
std::optional<std::string> difference(const nlohmann::json& recorded, const nlohmann::json& found);

}  // namespace fsdp::data
