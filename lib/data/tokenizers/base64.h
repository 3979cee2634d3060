#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// The bytes that base64 (RFC 4648, section 4) stands for; nothing when it is none.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace fsdp::data
