#pragma once

// Messages about command lines, in the form of the config's errors: one sentence with what was expected, what
// was found, and the remedy.

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/cli/page.h"

namespace fsdp::cli {

/// Describes `error`, thrown by app.parse(). Reports unknown words first, because a typo in an option's name
/// makes other words seem to be missing.
std::string usage_error_text(const CLI::App& app, const Page& page, const CLI::ParseError& error);

std::vector<std::string> command_names(const CLI::App& app);

/// Returns the command probably meant by a word that is neither a command nor a file; "" if there is none.
std::string misspelt_command(const CLI::App& app, const std::string& word);

/// Flags of options whose fields have other names: {"overwrite", "--force"}.
using FlagNames = std::map<std::string, std::string>;

/// Replaces the names of fields in the library's messages, such as `max_lines` in back quotes, by flags:
/// --max-lines, or the flag in `names`.
std::string with_flags(const std::string& text, const FlagNames& names = {});

/// Runs a command of a program, and applies with_flags() to its Error.
int run_command(const std::function<int()>& command, const FlagNames& names = {});

}  // namespace fsdp::cli
