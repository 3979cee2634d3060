#pragma once

// The command line of fsdp-launch: torchrun's options, with - or _, and its PET_ variables.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "launch/options.h"

namespace fsdp::launch {

/// What a program adds to the reading of its command line.
struct CommandLineHooks {
  /// Gets the options before the arguments are read; true: nothing more is to be done.
  std::function<bool(CLI::App&)> prepare = {};
  /// The sentence for an error of CLI11's.
  std::function<std::string(const CLI::App&, const CLI::ParseError&)> explain = {};
};

/// What the arguments ask for; nothing when they asked for help, which is printed then, or `prepare` returns
/// true. Throws Error(kUsage).
std::optional<LaunchOptions> parse_command_line(int argc, const char* const* argv,
                                                const CommandLineHooks& hooks = {});

}  // namespace fsdp::launch
