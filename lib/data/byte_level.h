#pragma once

// How byte-level BPE writes bytes in its vocabularies: each byte as a character that can be seen. Bytes that
// are printable in Latin-1 stand for themselves, the others are U+0100, U+0101, ... in order (GPT-2's
// bytes_to_unicode).

#include <optional>
#include <string>
#include <string_view>

namespace fsdp::data {

/// The character of a byte, as UTF-8.
const std::string& byte_symbol(unsigned char byte);

/// The bytes that the characters of a token stand for; nothing when one of them stands for none.
std::optional<std::string> symbols_to_bytes(std::string_view token);

}  // namespace fsdp::data
