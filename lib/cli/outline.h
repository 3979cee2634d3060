#pragma once

// A program's options, taken from CLI11, and what is generated from them: completions for shells and the man
// page.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/page.h"

namespace fsdp::cli {

struct Flag {
  std::vector<std::string> names;  ///< "-o", "--output"; without alternative spellings
  bool takes_value = false;
  std::string type;                 ///< of the value: "TEXT", "INT"
  std::vector<std::string> values;  ///< the choices; empty: any value
  std::string default_value;
  std::string meaning;
};

struct Positional {
  std::string name;
  bool required = false;
  bool repeats = false;
  std::vector<std::string> values;  ///< the choices; empty: any value
  std::string meaning;
};

/// A program or one of its commands.
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

/// A script for "bash", "zsh" or "fish" that completes options, commands, their values, and words name=value;
/// nothing for another shell. `source <(PROGRAM completions bash)` loads it in bash and zsh, `PROGRAM
/// completions fish | source` or a file in the folder of completions in fish.
std::optional<std::string> completions(const Outline& outline, const Page& page, const std::string& shell);

/// The program's page for man(1), section 1, as troff with the man macros. `notes`, the footer of --help, is
/// omitted if the page has words.
std::string man_page(const Outline& outline, const Page& page, const std::string& notes);

}  // namespace fsdp::cli
