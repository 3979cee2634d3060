#pragma once

// Conflicts: collects the broken conditions of checks.h.

#include <string>
#include <utility>
#include <vector>

#include "base/util/error.h"
#include "setup/config/checks.h"

namespace fsdp::config {

struct Conflicts {
  /// The text of the conflict is the first key, followed by the message: "KEY must be ...".
  template <typename... Parts>
  void unless(bool condition, std::vector<std::string> keys, const Parts&... message) {
    if (condition) return;
    std::string text = concat(keys.front(), " ", message...);
    found.push_back({std::move(keys), std::move(text)});
  }

  std::vector<Conflict> found;
};

}  // namespace fsdp::config
