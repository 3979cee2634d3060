#include "data/tokenizers/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/util/text.h"

namespace fsdp::data {
namespace {

/// Decodes a character. The result has 0 bytes if no character begins there.
CodePoint decoded(std::string_view text) {
  utf8proc_int32_t value = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                      static_cast<utf8proc_ssize_t>(text.size()), &value);
  if (bytes <= 0) return {};
  return {static_cast<uint32_t>(value), static_cast<size_t>(bytes)};
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Skips eight bytes of ASCII at once, since most texts are mostly ASCII.
    while (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, sizeof(word));
      if (word & 0x8080808080808080ULL) break;
      i += 8;
    }
    if (i == text.size()) break;
    const size_t bytes = decoded(text.substr(i)).bytes;
    if (bytes == 0) break;
    i += bytes;
  }
  return i;
}

size_t incomplete_utf8_tail(std::string_view text) {
  constexpr size_t kMostBytes = 4;  // bytes of the longest character
  for (size_t back = 1; back < std::min(kMostBytes, text.size() + 1); ++back) {
    std::string tail(text.substr(text.size() - back));
    if (is_continuation(tail[0])) continue;
    // Tests whether the character could be completed: the lowest or highest bytes fit every lead byte.
    for (size_t bytes = back + 1; bytes <= kMostBytes; ++bytes) {
      for (const char filler : {'\x80', '\xbf'}) {
        tail.resize(back);
        tail.resize(bytes, filler);
        if (decoded(tail).bytes == bytes) return back;
      }
    }
    return 0;
  }
  return 0;
}

void append_utf8(std::string& text, uint32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  text.append(bytes.begin(), bytes.begin() + count);
}

CodePoint first_code_point(std::string_view text) {
  const CodePoint character = decoded(text);
  return character.bytes > 0 ? character : CodePoint{static_cast<unsigned char>(text[0]), 1};
}

bool is_white_space(uint32_t value) {
  return (value >= 0x9 && value <= 0xd) || value == 0x20 || value == 0x85 || value == 0xa0 ||
         value == 0x1680 || (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 ||
         value == 0x202f || value == 0x205f || value == 0x3000;
}

std::string_view trimmed_left(std::string_view text) {
  while (!text.empty()) {
    const CodePoint first = decoded(text);
    if (first.bytes == 0 || !is_white_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

std::string_view trimmed_right(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && is_continuation(text[last])) --last;
    const CodePoint character = decoded(text.substr(last));
    if (last + character.bytes != text.size() || !is_white_space(character.value)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

std::string for_message(std::string_view text) {
  constexpr size_t kMostBytes = 300;
  std::string shown(text.substr(0, kMostBytes));
  if (text.size() > kMostBytes) {
    shown.resize(shown.size() - incomplete_utf8_tail(shown));
    shown += "...";
  }
  return replace_all(replace_all(util::printable(shown), "\n", "\\n"), "\t", " ");
}

}  // namespace fsdp::data
