#pragma once

#include <optional>
#include <string>

#include "config/source.h"

namespace fsdp::config {

struct TextDefect {
  Region region;
  std::string message;
};

/// Bytes that TOML does not allow: no UTF-8, or control characters.
std::optional<TextDefect> byte_defect(const Source& source);

/// What a TOML parser would choke on: brackets or dotted keys nested so deeply that a recursive parser could
/// exhaust the stack, or lines so long that one whose time grows with their square would seem to hang.
std::optional<TextDefect> shape_defect(const Source& source);

}  // namespace fsdp::config
