#pragma once

// The command line of fsdp-launch: torchrun's options, with - or _, and torchrun's PET_ variables.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "tools/launch/options.h"

namespace fsdp::launch {

/// Callbacks of the program.
struct CommandLineHooks {
  /// Called before the arguments are read. Returns whether there is nothing more to do.
  std::function<bool(CLI::App&)> prepare = {};
  /// Returns the message for an error of CLI11.
  std::function<std::string(const CLI::App&, const CLI::ParseError&)> explain = {};
};

/// The options in the arguments. Nothing after printing help, or if `prepare` returns true. Throws
/// Error(kUsage).
std::optional<LaunchOptions> parse_command_line(int argc, const char* const* argv,
                                                const CommandLineHooks& hooks = {});

}  // namespace fsdp::launch
