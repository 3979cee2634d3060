#pragma once

// Messages about names that the table of keys does not have, with what was probably meant.

#include <string>

#include "config/keys.h"

namespace fsdp::config {

std::string unknown_section_text(const std::string& section);
std::string unknown_key_text(const std::string& section, const std::string& name);
/// For a key above all sections.
std::string top_level_text(const std::string& name);
/// For an override without a section or without a value.
std::string override_form_text(const std::string& name, bool has_value);

/// "; did you mean \"adamw\"?" for a value that the key does not take; empty where none is near.
std::string nearest_value_text(const Key& key, const std::string& found);

}  // namespace fsdp::config
