#pragma once

// Parses TOML into sections, keys and literals with their places. Only parse.cpp includes the TOML library.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "setup/config/source.h"

namespace fsdp::config {

/// A value as it was written.
struct Literal {
  enum class Kind { kString, kInteger, kFloat, kBool, kDate, kList, kTable, kNull };

  Kind kind = Kind::kTable;
  std::string text;  ///< the content of a string; a number or date as written
  int64_t integer = 0;
  double number = 0;
  bool boolean = false;
  bool out_of_range = false;   ///< a number that does not fit into 64 bits
  std::vector<Literal> items;  ///< entries of a list
  /// Fields of a table that is not a section, in the order of the text.
  struct Field;
  std::vector<Field> fields;
  Region region;
};

struct Literal::Field {
  std::string name;
  Literal value;
};

/// A key and its value.
struct TomlEntry {
  std::string section;  ///< empty: the key stands above all sections
  std::string name;     ///< empty: the section itself, which is a table
  Literal value;
};

/// Reason why a text is not TOML.
struct SyntaxError {
  std::string message;
  std::optional<Region> region;
};

/// The entries in the order of the text. Throws only SyntaxError.
std::vector<TomlEntry> parse_toml(const Source& source);

/// Describes the literal in a message: "the string \"abc\"", "the integer 5", "a list".
std::string described(const Literal& literal);

}  // namespace fsdp::config
