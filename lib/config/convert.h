#pragma once

// Converts literals to values of keys.

#include <string>

#include "config/keys.h"
#include "config/parse.h"

namespace fsdp::config {

/// Why a literal is not a value of a key ("fsdp.cpu_offload: expected false; found true (...)"), and its place.
struct Misfit {
  std::string message;
  Region region;
};

/// The literal as a value that the key allows; an integer may stand for a float. Throws only Misfit.
Value convert(const Key& key, const Literal& literal);

/// The message of a Misfit. If `word`, the written value, is near a choice, suggests that choice.
std::string misfit_text(const Key& key, const std::string& found, const std::string& word = "");

}  // namespace fsdp::config
