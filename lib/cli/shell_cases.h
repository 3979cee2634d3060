#pragma once

// What the scripts for bash and zsh share: they walk the words before the cursor in the same way, and branch
// by "COMMAND:--flag" and "COMMAND:POSITION" (COMMAND is empty before a command is named).

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/outline.h"
#include "cli/page.h"

namespace fsdp::cli {

/// A word that can be completed, and what is said of it.
struct Choice {
  std::string word;
  std::string meaning;
};

/// One place on the command line.
struct Place {
  std::string pattern;  ///< of a shell's `case`, of "COMMAND:--flag" or "COMMAND:POSITION"
  std::vector<Choice> choices;
  bool files = false;  ///< names of files too
};

struct ShellCases {
  std::vector<std::string> commands;
  /// Patterns of "COMMAND:--flag" whose flag is followed by a value.
  std::vector<std::string> value_flags;
  std::vector<Place> flag_values;   ///< the value of such a flag, where there are values to choose from
  std::vector<Place> flags;         ///< pattern: the command
  std::vector<Place> positionals;   ///< by position; the first that matches counts
  std::vector<std::string> worded;  ///< patterns of places that take the words of the page
};

ShellCases shell_cases(const Outline& outline, const Page& page);

/// What the scripts of both shells are filled with (see filled()); `cases_of` writes places as the branches
/// of a `case`.
std::map<std::string, std::string> common_values(const ShellCases& cases, const Page& page,
                                                 std::string (*cases_of)(const std::vector<Place>&));

/// The text up to its first ":" or ";", at most some 100 characters of it, for a list of choices.
std::string short_meaning(const std::string& meaning);

/// In single quotes, for all three shells.
std::string single_quoted(const std::string& text);

/// "fsdp-train" -> "_fsdp_train".
std::string function_name(const std::string& program);

/// `text` with each @NAME@ replaced by the value of that name.
std::string filled(std::string_view text, const std::map<std::string, std::string>& values);

}  // namespace fsdp::cli
