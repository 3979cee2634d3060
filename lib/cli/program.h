#pragma once

// What every program does alike on its command line: --help with examples first, --version, completions for
// shells and a man page. A main() describes its options to CLI11 and its page (page.h), and calls parse():
//
//   if (auto code = cli::parse(app, page, argc, argv)) return *code;

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/page.h"
#include "cli/validators.h"

namespace fsdp::cli {

/// Adds --version and the examples of --help, and reads the command line. The exit code, if the program has
/// nothing more to do: it has printed what it was asked for (--help, --version, `NAME completions SHELL`,
/// `NAME man-page`), or what is wrong with the command line.
std::optional<int> parse(CLI::App& app, const Page& page, int argc, char** argv);

/// The part of it before the command line is read. Whether `completions` or `man-page` was asked for, and was
/// printed. Prepares the process for its limits (util/limits.h) too. Throws Error(kUsage).
bool prepare(CLI::App& app, const Page& page, int argc, const char* const* argv);

/// Prints what a command was asked for. Throws Error(kIo) where standard output does not take it (a full disk
/// behind a redirection): what is lost must not look like success.
void print(const std::string& text);

}  // namespace fsdp::cli
