#pragma once

// Completions for shells: options, commands, values to choose from, and words name=value with theirs.

#include <optional>
#include <string>

#include "cli/outline.h"
#include "cli/page.h"

namespace fsdp::cli {

/// A script for "bash", "zsh" or "fish" that completes the program; nothing for another shell. In bash and
/// zsh, `source <(PROGRAM completions bash)` makes it known; fish reads it from a file in its folder of
/// completions or from `PROGRAM completions fish | source`.
std::optional<std::string> completions(const Outline& outline, const Page& page, const std::string& shell);

std::string bash_completions(const Outline& outline, const Page& page);
std::string zsh_completions(const Outline& outline, const Page& page);
std::string fish_completions(const Outline& outline, const Page& page);

}  // namespace fsdp::cli
