#pragma once

// What a key accepts beyond its type. One description serves the check, the error message and --help.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "config/value.h"

namespace fsdp::config {

/// Bounds apply to a number, or to each number of a list.
struct Constraint {
  std::optional<double> min = std::nullopt;
  std::optional<double> max = std::nullopt;
  bool above_min = false;  ///< min itself is not allowed
  bool below_max = false;  ///< max itself is not allowed
  std::optional<double> also =
      std::nullopt;  ///< one value outside of the bounds that has a meaning (-1: the rest; inf)
  /// The only values: a string's content, or a bool or integer as TOML. Empty: no such limit.
  std::vector<std::string> choices = {};
  std::string because = {};  ///< why there are no other choices
  bool non_empty = false;    ///< a string with at least one character, a list with at least one entry
  size_t length = 0;         ///< of a list; 0: any
};

/// Numbers from min on.
Constraint at_least(double min);
/// Numbers from min to max, both included.
Constraint between(double min, double max);
/// Numbers above min.
Constraint above(double min);
/// Numbers from min on and below max.
Constraint from_up_to_below(double min, double max);
/// One of these strings; of a bool or an integer as TOML writes it.
Constraint one_of(std::vector<std::string> choices);
/// The only value that works, and the reason.
Constraint only(std::string choice, std::string because);
/// A string with at least one character, a list with at least one entry.
Constraint non_empty();

/// Whether `value` is allowed. NaN never is, infinity only where `also` says so, text with control characters
/// never (no file name or name of ours needs one), and neither is an empty entry of a list of strings.
bool allows(const Constraint& constraint, const Value& value);

/// What is allowed for a value of the type of `example`: "an integer >= 1", "one of \"llama\", \"gpt2\"".
std::string expectation(const Constraint& constraint, const Value& example);

/// The limits alone, for --help: ">= 1", "\"llama\", \"gpt2\""; empty if there are none.
std::string limits(const Constraint& constraint, const Value& example);

/// "string", "integer", "float", "bool", "list of strings", "list of floats", "list of integers",
/// "list of tables".
std::string type_name(const Value& example);

}  // namespace fsdp::config
