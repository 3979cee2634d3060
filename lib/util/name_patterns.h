#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::util {

/// Whether one of the patterns matches the whole name. In a pattern * stands for any number of characters
/// (dots too), ? for exactly one, and every other character for itself: "*norm*", "*.bias".
bool matches_any(std::string_view name, const std::vector<std::string>& patterns);

}  // namespace fsdp::util
