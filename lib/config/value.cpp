#include "config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "config/parameter_groups.h"
#include "util/error.h"

namespace fsdp::config {
namespace {

template <typename Item, typename Print>
std::string list_text(const std::vector<Item>& items, Print print) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ", ";
    text += print(items[i]);
  }
  return text + "]";
}

}  // namespace

std::string quoted_text(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (auto code = static_cast<unsigned char>(c); code < 0x20 || code == 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04X", static_cast<unsigned>(code));
      result += buffer;
    } else {
      result += c;
    }
  }
  return result + "\"";
}

bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    auto code = static_cast<unsigned char>(c);
    return code < 0x20 || code == 0x7f;
  });
}

std::string toml_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  FSDP_CHECK(error == std::errc(), "a double needs more than 64 characters");
  std::string text(buffer, end);
  size_t exponent = text.find('e');
  if (exponent == std::string::npos) {
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  // std::to_chars pads the exponent (1e-05); people write 1e-5.
  size_t digits = exponent + 2;
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  return text;
}

std::string toml_text(const Value& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return quoted_text(held);
        } else if constexpr (std::is_same_v<Held, bool>) {
          return held ? "true" : "false";
        } else if constexpr (std::is_same_v<Held, int64_t>) {
          return std::to_string(held);
        } else if constexpr (std::is_same_v<Held, double>) {
          return toml_text(held);
        } else if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
          return list_text(held, quoted_text);
        } else if constexpr (std::is_same_v<Held, ParameterGroups>) {
          return toml_text(held);
        } else if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
          return list_text(held, [](int64_t item) { return std::to_string(item); });
        } else {
          return list_text(held, [](double item) { return toml_text(item); });
        }
      },
      value);
}

std::string clipped(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t length = limit;
  // 10xxxxxx is a continuation byte of UTF-8.
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return std::string(text.substr(0, length)) + "...";
}

}  // namespace fsdp::config
