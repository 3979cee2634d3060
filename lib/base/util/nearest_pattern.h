#pragma once

#include <string>
#include <vector>

namespace fsdp::util {

/// `pattern`, which matches none of the names, with the word that is most likely misspelt replaced by one of the
/// names', so that it matches some: "*.q_porj.*" -> "*.q_proj.*". "" if there is none.
std::string nearest_pattern(const std::string& pattern, const std::vector<std::string>& names);

/// What to do about such a pattern, as the end of a message: did you mean "*.q_proj.*"?
std::string pattern_remedy(const std::string& pattern, const std::vector<std::string>& names);

}  // namespace fsdp::util
