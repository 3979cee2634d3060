#pragma once

// Converts literals to values of keys, and words the messages about literals and names that do not fit.

#include <string>

#include "setup/config/keys.h"
#include "setup/config/parse.h"

namespace fsdp::config {

/// Reason why a literal is not a value of a key ("fsdp.cpu_offload must be false, but is true (...)"), and
/// the literal's place.
struct Misfit {
  std::string message;
  Region region;
};

/// The literal as a value that the key allows; an integer may stand for a float. Throws only Misfit.
Value convert(const Key& key, const Literal& literal);

/// The message of a Misfit; `found` is a predicate: "is 3". If `word`, the written value, is near a choice,
/// suggests that choice.
std::string misfit_text(const Key& key, const std::string& found, const std::string& word = "");

std::string unknown_section_text(const std::string& section);
std::string unknown_key_text(const std::string& section, const std::string& name);
/// Message for a key above all sections.
std::string top_level_text(const std::string& name);
/// Message for an override without a section or without a value.
std::string override_form_text(const std::string& name, bool has_value);

}  // namespace fsdp::config
