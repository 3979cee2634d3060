#pragma once

// `include = ["base.toml"]` at the top of a configuration: other files whose keys it takes over.

#include <deque>
#include <string_view>

#include "setup/config/source.h"

namespace fsdp::config {

inline constexpr std::string_view kIncludeKey = "include";

/// Returns `file` after everything that it includes, so that of two values of a key the later one counts: a
/// file overrides what it includes, and of two included files the second overrides the first. Paths are
/// relative to the folder of the file that names them. Errors of an include (no such file, a cycle, too deep)
/// go to `report`, and the file is left out. References to the elements stay valid when the deque is moved.
std::deque<Source> with_included(Source file, Report& report);

}  // namespace fsdp::config
