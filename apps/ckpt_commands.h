#pragma once

// The commands of fsdp-ckpt: their options and their output.

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace fsdp::apps {

struct CkptCommand {
  CLI::App* parser;          ///< parser of the command; true if the command line names it
  std::function<int()> run;  ///< called after parsing; returns the exit code
};

/// Exit code of `diff` when the two sides differ.
inline constexpr int kExitDifferent = 1;

std::vector<CkptCommand> add_ckpt_commands(CLI::App& app);

}  // namespace fsdp::apps
