#pragma once

// UTF-8 as the Unicode standard defines it (no surrogates, no overlong forms, at most U+10FFFF).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::data {

/// Returns the bytes of the longest prefix that is whole characters.
size_t valid_utf8_prefix(std::string_view text);

/// Returns the number of bytes at the end of `text` (0 to 3) that begin an incomplete character.
size_t incomplete_utf8_tail(std::string_view text);

/// Whether the byte is the second or a later byte of a character.
inline bool is_continuation(char byte) { return (byte & 0xc0) == 0x80; }

void append_utf8(std::string& text, uint32_t code_point);

/// The character at the beginning of `text`, which must not be empty, and its number of bytes. If no
/// character begins there, the value is the byte.
struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;
};
CodePoint first_code_point(std::string_view text);

/// Whether the character is in Unicode's White_Space.
bool is_white_space(uint32_t code_point);

/// Returns `text` without the white space at its beginning, or at its end.
std::string_view trimmed_left(std::string_view text);
std::string_view trimmed_right(std::string_view text);

/// Returns `text` with each `from`, which must not be empty, replaced by `to`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

/// Returns text from a file in a form for a message: one line, safe for a terminal, at most 300 bytes.
std::string for_message(std::string_view text);

}  // namespace fsdp::data
