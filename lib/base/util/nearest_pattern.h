#pragma once

#include <string>
#include <vector>

namespace fsdp::util {

/// Returns `pattern`, which matches none of the names, with its most likely misspelt word replaced by a word
/// from the names, so that it matches some: "*.q_porj.*" -> "*.q_proj.*". "" if there is no such word.
std::string nearest_pattern(const std::string& pattern, const std::vector<std::string>& names);

/// Returns the remedy for such a pattern, as the end of a message: did you mean "*.q_proj.*"?
std::string pattern_remedy(const std::string& pattern, const std::vector<std::string>& names);

/// Throws Error(kUsage) if a pattern of the option matches none of the names. `expected`: what a pattern must
/// match, such as "names of linear layers".
void require_matches(const char* option, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names, const std::string& expected);

}  // namespace fsdp::util
