#pragma once

// The value of one configuration key, and how it is written in TOML.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "optim/options.h"

namespace fsdp::config {

/// The types that a key can have; an enum is the string that names its value.
using Value = std::variant<std::string, int64_t, double, bool, std::vector<std::string>, std::vector<double>,
                           std::vector<int64_t>, std::vector<optim::ParameterGroupOptions>>;

/// A TOML basic string: in quotes, with what must be escaped escaped.
std::string quoted_text(std::string_view text);

/// Whether text has no control characters.
bool is_printable(std::string_view text);

/// The value as TOML. Floats are written with the fewest digits that read back as the same float.
std::string toml_text(const Value& value);

/// A double as TOML: always with a point, an exponent, or as inf.
std::string toml_text(double value);

/// A key or value for a message: at most `limit` bytes of it, never half a character.
std::string clipped(std::string_view text, size_t limit = 60);

}  // namespace fsdp::config
