#include "data/texts/row_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace fsdp::data {
namespace {

template <typename Number>
void append_all(std::string& json, std::string_view bytes) {
  json += '[';
  std::array<char, 24> digits{};
  for (size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    if (at > 0) json += ',';
    json.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
  }
  json += ']';
}

struct NumberType {
  std::string_view name;
  size_t bytes;
  void (*append)(std::string& json, std::string_view bytes);
};

constexpr NumberType kNumberTypes[] = {
    {"uint8", 1, append_all<uint8_t>},   {"int8", 1, append_all<int8_t>},
    {"uint16", 2, append_all<uint16_t>}, {"int16", 2, append_all<int16_t>},
    {"uint32", 4, append_all<uint32_t>}, {"int32", 4, append_all<int32_t>},
    {"uint64", 8, append_all<uint64_t>}, {"int64", 8, append_all<int64_t>},
};

}  // namespace

void append_string(std::string& json, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto is_special = [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; };
  json += '"';
  while (!text.empty()) {
    const auto plain = static_cast<size_t>(std::ranges::find_if(text, is_special) - text.begin());
    json.append(text, 0, plain);
    if (plain == text.size()) break;
    const char c = text[plain];
    text.remove_prefix(plain + 1);
    json += '\\';
    if (static_cast<unsigned char>(c) >= ' ') {
      json += c;
    } else {
      json += "u00";
      json += kDigits[c >> 4];
      json += kDigits[c & 15];
    }
  }
  json += '"';
}

std::optional<size_t> bytes_of_number(std::string_view type) {
  const auto* const found = std::ranges::find(kNumberTypes, type, &NumberType::name);
  if (found == std::end(kNumberTypes)) return std::nullopt;
  return found->bytes;
}

void append_numbers(std::string& json, std::string_view type, std::string_view bytes) {
  std::ranges::find(kNumberTypes, type, &NumberType::name)->append(json, bytes);
}

}  // namespace fsdp::data
