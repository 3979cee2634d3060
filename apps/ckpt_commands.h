#pragma once

// The commands of fsdp-ckpt: their options, and what they print.

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

namespace fsdp::apps {

struct CkptCommand {
  CLI::App* parser;          ///< true when the command line names it
  std::function<int()> run;  ///< after parsing; returns the exit code
};

/// Exit code of `diff` when the two sides differ.
inline constexpr int kExitDifferent = 1;

std::vector<CkptCommand> add_ckpt_commands(CLI::App& app);

}  // namespace fsdp::apps
