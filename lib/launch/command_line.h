#pragma once

// The command line of fsdp-launch: torchrun's options, with - or _, and its PET_ variables.

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>

#include "launch/options.h"

namespace fsdp::launch {

/// What the arguments ask for; nothing when they asked for help, which is printed then, or `prepare`, which
/// is given the options before the arguments are read, returns true. Throws Error(kUsage).
std::optional<LaunchOptions> parse_command_line(int argc, const char* const* argv,
                                                const std::function<bool(CLI::App&)>& prepare = {});

}  // namespace fsdp::launch
