#pragma once

// Files generated from a program's options: completions for shells and the man page.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/cli/page.h"

namespace fsdp::cli {

/// Returns a script for "bash", "zsh" or "fish" that completes options, commands, their values, and words
/// name=value; nothing for another shell.
std::optional<std::string> completions(const CLI::App& app, const Page& page, const std::string& shell);

/// Returns the program's page for man(1), section 1, as troff with the man macros. Omits the footer of --help
/// if the page has words, since the footer lists them too.
std::string man_page(const CLI::App& app, const Page& page);

}  // namespace fsdp::cli
