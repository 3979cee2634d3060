#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::config {

/// Bytes of the UTF-8 character that starts at `at`, or 0 if there is none (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF).
size_t utf8_length(std::string_view text, size_t at);

}  // namespace fsdp::config
