#pragma once

// What is wrong with a command line, in the voice of the config's errors: what was expected, what was found,
// and the remedy, in one sentence.

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/page.h"

namespace fsdp::cli {

/// `error` was thrown by app.parse(). Words that nothing takes are named before all else, because a slip in
/// an option's name makes others seem to be missing.
std::string usage_error_text(const CLI::App& app, const Page& page, const CLI::ParseError& error);

/// The commands of a program, such as "init".
std::vector<std::string> command_names(const CLI::App& app);

/// The command that was probably meant by a word that is neither one nor an existing file; empty if none was.
std::string misspelt_command(const CLI::App& app, const std::string& word);

/// Flags of options whose fields in the library have other names: {"overwrite", "--force"}.
using FlagNames = std::map<std::string, std::string>;

/// The library names an option by its field, in back quotes: `max_lines`. The text with flags in place of such
/// names: --max-lines, or what `names` has.
std::string with_flags(const std::string& text, const FlagNames& names = {});

/// Runs a command of a program; an Error that it throws names flags.
int run_command(const std::function<int()>& command, const FlagNames& names = {});

}  // namespace fsdp::cli
