#pragma once

// A program's options as CLI11 has them, for what is generated of them: completions and man pages.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace fsdp::cli {

struct Flag {
  std::vector<std::string> names;  ///< "-o", "--output"; without other spellings of a name
  bool takes_value = false;
  std::string type;                 ///< of the value: "TEXT", "INT"
  std::vector<std::string> values;  ///< those to choose from; empty: any
  std::string default_value;
  std::string meaning;
};

struct Positional {
  std::string name;
  bool required = false;
  bool repeats = false;
  std::vector<std::string> values;
  std::string meaning;
};

/// A program, or one of its commands.
struct Outline {
  std::string name;
  std::string meaning;
  std::vector<Positional> positionals;
  std::vector<Flag> flags;
  std::vector<Outline> commands;
};

Outline outline_of(const CLI::App& app);

/// Whether it takes the words of a Page.
bool takes_words(const Outline& outline);

/// "[OPTIONS] config [overrides...]"
std::string usage_of(const Outline& outline);

}  // namespace fsdp::cli
