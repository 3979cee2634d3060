#pragma once

#include <string>
#include <vector>

namespace fsdp::data {

/// The files that `texts` name, in order: a name with *, ? or [ that is not a file is a pattern, replaced by
/// the files that match it, sorted. Throws Error(kData) when none does.
std::vector<std::string> expand_patterns(const std::vector<std::string>& texts);

}  // namespace fsdp::data
