#pragma once

// The value of one configuration key: its types, how it is written in TOML, and what a key accepts beyond its
// type (one description for the check, the error message and --help).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "state/groups/options.h"

namespace fsdp::config {

/// The types that a key can have; an enum is given as the string that names its value.
using Value = std::variant<std::string, int64_t, double, bool, std::vector<std::string>, std::vector<double>,
                           std::vector<int64_t>, std::vector<optim::ParameterGroupOptions>>;

/// A TOML basic string: in quotes, escaped where necessary.
std::string quoted_text(std::string_view text);

/// Whether text has no control characters.
bool is_printable(std::string_view text);

/// The value as TOML. Floats are written with the fewest digits that read back as the same float.
std::string toml_text(const Value& value);

/// Writes a number with a point, an exponent, or as inf.
std::string toml_text(double value);

/// A key or value for a message, cut to `limit` bytes at a character boundary.
std::string clipped(std::string_view text, size_t limit = 60);

/// Values that a key accepts. Bounds apply to a number, or to each number of a list.
struct Constraint {
  std::optional<double> min = std::nullopt;
  std::optional<double> max = std::nullopt;
  bool above_min = false;                     ///< min itself is not allowed
  bool below_max = false;                     ///< max itself is not allowed
  std::optional<double> also = std::nullopt;  ///< a value allowed outside of the bounds (-1: the rest; inf)
  /// The only values, if any: a string's content, or a bool or integer as TOML.
  std::vector<std::string> choices = {};
  std::string because = {};  ///< why there are no other choices
  bool non_empty = false;    ///< a string with at least one character, a list with at least one entry
  size_t length = 0;         ///< required length of a list; 0: any
};

/// min <= number.
Constraint at_least(double min);
/// min <= number <= max.
Constraint between(double min, double max);
/// min < number.
Constraint above(double min);
/// min <= number < max.
Constraint from_up_to_below(double min, double max);
/// One of these strings, or bools or integers as TOML.
Constraint one_of(std::vector<std::string> choices);
/// A string with at least one character, a list with at least one entry.
Constraint non_empty();

/// Whether `value` is allowed. Never allowed are NaN, infinity other than `also`, text with control
/// characters, and empty entries of a list of strings.
bool allows(const Constraint& constraint, const Value& value);

/// Describes what is allowed, for a value of the type of `example`: "an integer >= 1", "one of \"llama\",
/// \"gpt2\"".
std::string expectation(const Constraint& constraint, const Value& example);

/// The limits alone, for --help: ">= 1", "\"llama\", \"gpt2\""; empty if there are none.
std::string limits(const Constraint& constraint, const Value& example);

/// "string", "integer", "float", "bool", "list of strings", "list of floats", "list of integers",
/// "list of tables".
std::string type_name(const Value& example);

}  // namespace fsdp::config
