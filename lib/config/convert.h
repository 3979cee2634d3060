#pragma once

// From a literal to the value of a key.

#include <string>

#include "config/keys.h"
#include "config/parse.h"

namespace fsdp::config {

/// Why a literal is no value of a key: "fsdp.cpu_offload: expected false; found true (...)", and where.
struct Misfit {
  std::string message;
  Region region;
};

/// The literal as a value that the key allows; an integer serves where a float is expected. Throws Misfit and
/// nothing else.
Value convert(const Key& key, const Literal& literal);

/// The sentence of a Misfit. With the value's `word` it names the choice that was probably meant.
std::string misfit_text(const Key& key, const std::string& found, const std::string& word = "");

}  // namespace fsdp::config
