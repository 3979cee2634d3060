#include "data/utf8.h"

#include <algorithm>
#include <cstring>

#include "util/text.h"

namespace fsdp::data {
namespace {

unsigned char byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

struct Form {
  size_t bytes = 0;                       ///< 0: no character begins so
  unsigned char low = 0x80, high = 0xbf;  ///< of the second byte
};

/// Table 3-7 of the Unicode standard.
Form form_of(unsigned char lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xc2) return {};
  if (lead < 0xe0) return {2};
  if (lead == 0xe0) return {3, 0xa0, 0xbf};
  if (lead == 0xed) return {3, 0x80, 0x9f};
  if (lead < 0xf0) return {3};
  if (lead == 0xf0) return {4, 0x90, 0xbf};
  if (lead < 0xf4) return {4};
  if (lead == 0xf4) return {4, 0x80, 0x8f};
  return {};
}

/// How many bytes of `text` from `i` on fit the form, at most all of it.
size_t fitting_bytes(std::string_view text, size_t i, const Form& form) {
  size_t end = std::min(form.bytes, text.size() - i), count = 1;
  for (; count < end; ++count) {
    unsigned char low = count == 1 ? form.low : 0x80, high = count == 1 ? form.high : 0xbf;
    unsigned char byte = byte_at(text, i + count);
    if (byte < low || byte > high) break;
  }
  return count;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight bytes of ASCII at once: most texts are mostly that.
    while (i + 8 <= text.size()) {
      uint64_t word;
      std::memcpy(&word, text.data() + i, sizeof(word));
      if (word & 0x8080808080808080ULL) break;
      i += 8;
    }
    if (i == text.size()) break;
    Form form = form_of(byte_at(text, i));
    if (form.bytes == 0 || fitting_bytes(text, i, form) != form.bytes) break;
    i += form.bytes;
  }
  return i;
}

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    size_t i = text.size() - back;
    if ((byte_at(text, i) & 0xc0) == 0x80) continue;
    Form form = form_of(byte_at(text, i));
    return form.bytes > back && fitting_bytes(text, i, form) == back ? back : 0;
  }
  return 0;
}

void append_utf8(std::string& text, uint32_t code_point) {
  auto push = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | code_point >> 6);
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3f));
    push(0x80 | (code_point >> 6 & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

CodePoint first_code_point(std::string_view text) {
  unsigned char lead = byte_at(text, 0);
  size_t bytes = form_of(lead).bytes;
  if (bytes <= 1) return {lead, 1};
  uint32_t value = lead & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) value = value << 6 | (byte_at(text, i) & 0x3f);
  return {value, bytes};
}

bool is_white_space(uint32_t value) {
  return (value >= 0x9 && value <= 0xd) || value == 0x20 || value == 0x85 || value == 0xa0 ||
         value == 0x1680 || (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 ||
         value == 0x202f || value == 0x205f || value == 0x3000;
}

std::string for_message(std::string_view text) {
  constexpr size_t kMostBytes = 300;
  std::string shown(text.substr(0, kMostBytes));
  if (text.size() > kMostBytes) {
    shown.resize(shown.size() - incomplete_utf8_tail(shown));
    shown += "...";
  }
  std::string line;
  for (char c : util::printable(shown)) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c == '\t' ? ' ' : c;
    }
  }
  return line;
}

}  // namespace fsdp::data
