#pragma once

// Log-probabilities that a reference model gives to the completions of preferences, kept beside the data so
// that training needs no reference model. FILE.reference beside the first token file FILE is a line of JSON,
// the key, and after it numbers of 8 bytes, little-endian: for each document of the files in order, that of
// its completion; in files of single completions each is followed by that of the exchanged completion.
// Documents that no sample uses have NaN.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/options/options.h"
#include "data/tokens/token_files.h"

namespace fsdp::data {

/// Returns the path of the log-probabilities of a set of files.
std::filesystem::path stored_reference_path(const TokenFiles& files);

/// Returns the conditions under which the numbers hold: the data, and the options of the rows.
nlohmann::json stored_reference_key(const TokenFiles& files, const PreferenceOptions& options,
                                    int64_t sequence_length);

/// Writes the file, which appears complete or not at all. `model`: name of the model, for people. Throws
/// Error(kIo).
void write_stored_reference(const TokenFiles& files, const nlohmann::json& key, const std::string& model,
                            const std::vector<double>& log_probs);

/// Reads the `count` numbers of the file beside `files`. Throws Error(kData) if it is missing or damaged, or
/// if its key differs.
std::vector<double> read_stored_reference(const TokenFiles& files, const nlohmann::json& key, int64_t count);

}  // namespace fsdp::data
