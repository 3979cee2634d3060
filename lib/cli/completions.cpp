#include "cli/completions.h"

namespace fsdp::cli {

std::optional<std::string> completions(const Outline& outline, const Page& page, const std::string& shell) {
  if (shell == "bash") return bash_completions(outline, page);
  if (shell == "zsh") return zsh_completions(outline, page);
  if (shell == "fish") return fish_completions(outline, page);
  return std::nullopt;
}

}  // namespace fsdp::cli
