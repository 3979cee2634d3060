#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Decodes base64 (RFC 4648, section 4); nothing if the text is not valid.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace fsdp::data
