#pragma once

// The text of -h, one screen of the most important things, and that of --help, which is complete.

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/cli/page.h"

namespace fsdp::cli {

/// Width of --help and of wrapped().
struct HelpSize {
  bool is_short = false;  ///< at most 24 lines of 80 characters
  int columns = 80;
};

/// Returns the width of the terminal of standard output; of a pipe or file, that in COLUMNS, or 80.
int help_columns();

/// Whether the first word of the command line that asks for help is -h.
bool asks_for_short_help(int argc, const char* const* argv);

/// CLI11's formatter with examples before the usage, in the given size.
std::shared_ptr<CLI::Formatter> help_formatter(const Page& page, const HelpSize& size);

/// Breaks lines that are too long between words. A continuation begins below the second column of its line,
/// if the line has two, otherwise four characters further than the line.
std::string wrapped(const std::string& text, int columns);

}  // namespace fsdp::cli
