#pragma once

// Values of other trainers' configs: what they mean in words and numbers, and literals made of them.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "setup/config/parse.h"

namespace fsdp::config {

Literal text_literal(std::string text);
Literal list_literal(const std::vector<std::string>& texts);

/// The value of a text of TOML.
Literal toml_literal(std::string_view toml);

/// The number that a literal is or, as a string, has; YAML reads 1e-4 as a string.
std::optional<double> number_of(const Literal& literal);

/// The value in one word, as in a table of foreign values.
std::string word_of(const Literal& literal);

/// Words of a list, or of a string with spaces or commas between them.
std::vector<std::string> words_of(const Literal& literal);

/// Whether a value switches its name off.
bool is_off(const Literal& value);

}  // namespace fsdp::config
