#pragma once

// What tells one set of token files from another without reading it all: so that a run that resumes finds out
// that its data are not those that it has trained on.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "data/token_files.h"

namespace fsdp::data {

/// A list with an object a file: its name without folder, since data may be moved, its number of tokens and
/// of documents, and a hash of samples of both: the beginning, the end, and blocks spread evenly between.
/// Files of up to 128 Ki tokens are hashed whole. Throws Error(kData) as TokenFiles::read() does.
nlohmann::json identity_of(const TokenFiles& files);

/// In words what the first file is that differs, is missing or is there besides; nothing when the files are
/// the same in the same order, whatever their names. `found` is of identity_of(); `recorded`, which may come
/// from outside, may be anything.
std::optional<std::string> difference(const nlohmann::json& recorded, const nlohmann::json& found);

}  // namespace fsdp::data
