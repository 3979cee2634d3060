#pragma once

// The command line of every program: --help with examples first, --version, completions for shells, a man
// page, and validators with messages in the form of base/util/error.h. A main() describes its options to
// CLI11 and its other help to a Page (page.h), and calls parse():
//
//   if (auto code = cli::parse(app, page, argc, argv)) return *code;

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cli/page.h"

namespace fsdp::cli {

/// Adds --version and the examples of --help, and parses the command line. Returns an exit code if the
/// program has printed --help, --version, `NAME completions SHELL`, `NAME man-page` or a usage error.
std::optional<int> parse(CLI::App& app, const Page& page, int argc, char** argv);

/// Does the part of parse() before the command line is parsed, and applies util::prepare_for_limits().
/// Returns whether `completions` or `man-page` was requested and has been printed. Throws Error(kUsage).
bool prepare(CLI::App& app, const Page& page, int argc, const char* const* argv);

/// Prints to standard output. Throws Error(kIo) if that fails, so that lost output is no success.
void print(const std::string& text);

/// Refuses an empty argument, which a shell makes of an unset variable, for an option that names a file or
/// folder. Leaving the option out is no error.
CLI::Validator not_empty();

/// Accepts only these values, which completions offer.
CLI::Validator one_of(const std::vector<std::string>& choices);

/// These accept finite numbers. CLI11 itself checks that the value of an integer option is an integer.
CLI::Validator at_least(double min);
CLI::Validator above(double min);
CLI::Validator between(int64_t min, int64_t max);

}  // namespace fsdp::cli
