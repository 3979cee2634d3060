#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "util/text.h"

namespace fsdp::util {

/// "a, b, c and 5 more": so many of them that a message can be read.
inline std::string name_list(const std::vector<std::string>& names, const char* separator = ", ") {
  constexpr size_t kMostShown = 10;
  const size_t shown = std::min(names.size(), kMostShown);
  std::string text = join({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown)}, separator);
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text;
}

}  // namespace fsdp::util
