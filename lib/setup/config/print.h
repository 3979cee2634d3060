#pragma once

// The configuration as text.

#include <string>
#include <utility>
#include <vector>

#include "setup/config/config.h"
#include "setup/config/load.h"

namespace fsdp::config {

struct Key;

/// Writes every key, in the order of the table. load_config() reads the text back to the same Config.
std::string to_toml(const Config& config);

/// Writes one section of it.
std::string section_toml(const Config& config, const std::string& section);

/// The text as lines that begin with "#"; bytes that could move a cursor become "?".
std::string as_comment(const std::string& text);

/// Writes to_toml() with the origin of each value as a comment.
std::string to_toml(const TracedConfig& traced);

/// The values with their origins, and the warnings, as one JSON object
/// (docs/schemas/fsdp-train-print-config.json).
std::string config_json(const TracedConfig& traced);

/// The description and limits of a key.
std::string help_of(const Key& key);

/// The table of keys for --help: type, default, meaning and limits of each.
std::string key_reference();

/// The table as a page of Markdown, docs/reference.md.
std::string key_reference_markdown();

/// The table as one JSON object (docs/schemas/fsdp-train-keys.json).
std::string key_reference_json();

/// The full name of every key, and its value in TOML.
std::vector<std::pair<std::string, std::string>> key_texts(const Config& config);

/// Keys whose values differ, as "training.steps: 200 -> 400", from `before` to `after`.
std::vector<std::string> differing_keys(const Config& before, const Config& after);

}  // namespace fsdp::config
