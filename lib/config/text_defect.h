#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "config/source.h"

namespace fsdp::config {

/// Bytes of the UTF-8 character that starts at `at`, or 0 if it is invalid (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF).
size_t utf8_length(std::string_view text, size_t at);

struct TextDefect {
  Region region;
  std::string message;
};

/// Bytes that TOML does not allow: invalid UTF-8, or control characters.
std::optional<TextDefect> byte_defect(const Source& source);

/// Text that the TOML parser cannot handle: brackets or dotted keys nested so deeply that recursion could exhaust
/// the stack, or lines so long that its quadratic time would look like a hang.
std::optional<TextDefect> shape_defect(const Source& source);

}  // namespace fsdp::config
