#pragma once

#include <string>
#include <vector>

namespace fsdp::data {

/// Returns the files that `texts` name, in order. A name with *, ? or [ that is not a file is a pattern, and
/// is replaced by the files that match it, sorted; so is a remote name, except those of web servers. Throws
/// Error(kData) if no file matches.
std::vector<std::string> expand_patterns(const std::vector<std::string>& texts);

}  // namespace fsdp::data
