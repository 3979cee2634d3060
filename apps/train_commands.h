#pragma once

// The commands of fsdp-train beside training itself.

#include <CLI/CLI.hpp>
#include <functional>

namespace fsdp::apps {

/// Adds `init`, `keys`, `doctor` and `compare` to the command line. The command that is given sets `run`,
/// which returns the exit code.
void add_train_commands(CLI::App& app, std::function<int()>& run);

}  // namespace fsdp::apps
