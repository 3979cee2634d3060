#include "data/chat/chat_python.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "base/util/text.h"
#include "data/tokenizers/utf8.h"

namespace fsdp::data {
namespace {

[[noreturn]] void refuse_large() {
  throw std::runtime_error("an integer beyond 64 bits, with which templates cannot compute");
}

/// Whether repr() prints the character unescaped: the visible characters, and the blank.
bool python_is_printable(uint32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

std::string escape_of(uint32_t code_point) {
  if (code_point < 0x100) return util::printed("\\x%02x", code_point);
  return util::printed(code_point < 0x10000 ? "\\u%04x" : "\\U%08x", code_point);
}

/// Returns the last character of `text`, which must not be empty.
std::string_view last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && is_continuation(text[begin])) --begin;
  const std::string_view character = text.substr(begin);
  return first_code_point(character).bytes == character.size() ? character : text.substr(text.size() - 1);
}

template <typename Mapping>
std::string mapped(std::string_view text, const Mapping& mapping) {
  std::string out;
  for (const std::string_view character : python_characters(text)) {
    if (character.size() == 1 && static_cast<unsigned char>(character[0]) >= 0x80) {
      out += character;  // byte that is not UTF-8
    } else {
      mapping(out, static_cast<utf8proc_int32_t>(first_code_point(character).value));
    }
  }
  return out;
}

constexpr utf8proc_int32_t kSharpS = 0xdf;

/// Returns digits without single underscores between them, as Python permits; nullopt for others.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() &&
                         std::isalnum(static_cast<unsigned char>(text[i - 1])) &&
                         std::isalnum(static_cast<unsigned char>(text[i + 1]));
    if (!between) return std::nullopt;
  }
  return plain;
}

}  // namespace

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[40];
  const auto shortest = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  const std::string digits(text, shortest.ptr);
  const int exponent = std::stoi(digits.substr(digits.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return digits;
  std::string fixed(text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return python_float(value);
}

std::string python_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : python_characters(text)) {
    const uint32_t code_point = first_code_point(character).value;
    if (code_point == static_cast<uint32_t>(quote) || code_point == '\\') {
      out += '\\';
      out += character;
    } else if (code_point == '\n' || code_point == '\r' || code_point == '\t') {
      out += code_point == '\n' ? "\\n" : code_point == '\r' ? "\\r" : "\\t";
    } else if (python_is_printable(code_point)) {
      out += character;
    } else {
      out += escape_of(code_point);
    }
  }
  return out + quote;
}

bool python_is_space(uint32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1c && code_point <= 0x1f);
}

std::string_view python_strip(std::string_view text, bool left, bool right,
                              std::optional<std::string_view> chars) {
  const auto is_stripped = [&](std::string_view character) {
    if (!chars) return python_is_space(first_code_point(character).value);
    return std::ranges::count(python_characters(*chars), character) > 0;
  };
  while (left && !text.empty()) {
    const std::string_view first = text.substr(0, first_code_point(text).bytes);
    if (!is_stripped(first)) break;
    text.remove_prefix(first.size());
  }
  while (right && !text.empty()) {
    const std::string_view last = last_character(text);
    if (!is_stripped(last)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::vector<std::string_view> python_split(std::string_view text, int64_t most, bool from_left) {
  std::vector<std::string_view> words;
  const auto is_space = [](std::string_view character) {
    return python_is_space(first_code_point(character).value);
  };
  text = python_strip(text, from_left, !from_left);
  while (!text.empty()) {
    if (most >= 0 && static_cast<int64_t>(words.size()) == most) {
      words.push_back(text);
      break;
    }
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view next =
          from_left ? rest.substr(0, first_code_point(rest).bytes) : last_character(rest);
      if (is_space(next)) break;
      from_left ? rest.remove_prefix(next.size()) : rest.remove_suffix(next.size());
    }
    const size_t length = text.size() - rest.size();
    words.push_back(from_left ? text.substr(0, length) : text.substr(rest.size()));
    text = python_strip(rest, from_left, !from_left);
  }
  if (!from_left) std::ranges::reverse(words);
  return words;
}

std::vector<std::string_view> python_characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    characters.push_back(text.substr(0, first_code_point(text).bytes));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

size_t python_length(std::string_view text) { return python_characters(text).size(); }

std::string python_upper(std::string_view text) {
  return mapped(text, [](std::string& out, utf8proc_int32_t code_point) {
    if (code_point == kSharpS) {
      out += "SS";
    } else {
      append_utf8(out, static_cast<uint32_t>(utf8proc_toupper(code_point)));
    }
  });
}

std::string python_lower(std::string_view text) {
  constexpr utf8proc_int32_t kDottedI = 0x130;
  return mapped(text, [](std::string& out, utf8proc_int32_t code_point) {
    append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(code_point)));
    if (code_point == kDottedI) out += "\u0307";
  });
}

std::string python_capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = first_code_point(text).bytes;
  std::string out = mapped(text.substr(0, first), [](std::string& title, utf8proc_int32_t code_point) {
    if (code_point == kSharpS) {
      title += "Ss";
    } else {
      append_utf8(title, static_cast<uint32_t>(utf8proc_totitle(code_point)));
    }
  });
  return out + python_lower(text.substr(first));
}

std::optional<int64_t> python_int_of(std::string_view text, int base) {
  std::optional<std::string> plain = without_underscores(python_strip(text, true, true));
  if (!plain) return std::nullopt;
  std::string digits = *plain;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const int of_prefix = digits[1] == 'x' || digits[1] == 'X'   ? 16
                          : digits[1] == 'o' || digits[1] == 'O' ? 8
                          : digits[1] == 'b' || digits[1] == 'B' ? 2
                                                                 : 0;
    if (of_prefix != 0 && (base == of_prefix || base == 0)) {
      digits.erase(0, 2);
      base = of_prefix;
    }
  }
  if (is_negative) digits.insert(digits.begin(), '-');
  int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [read, error] = std::from_chars(digits.data(), end, number, base == 0 ? 10 : base);
  const bool is_number = read == end && !digits.empty() && !digits.starts_with("--");
  if (is_number && error == std::errc::result_out_of_range) refuse_large();
  if (is_number && error == std::errc()) return number;
  const std::optional<double> value = python_float_of(text);
  return value && std::isfinite(*value) ? std::optional(python_int_of(*value)) : std::nullopt;
}

int64_t python_int_of(double value) {
  if (!std::isfinite(value) || std::abs(value) >= 0x1p63) refuse_large();
  return static_cast<int64_t>(value);
}

std::optional<double> python_float_of(std::string_view text) {
  const std::optional<std::string> plain = without_underscores(python_strip(text, true, true));
  if (!plain || plain->empty()) return std::nullopt;
  std::string_view digits = *plain;
  const bool has_plus = digits.starts_with('+');
  if (has_plus) digits.remove_prefix(1);
  if (digits.empty() || (has_plus && digits.front() == '-')) return std::nullopt;
  double value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [read, error] = std::from_chars(digits.data(), end, value);
  if (read != end || (error != std::errc() && error != std::errc::result_out_of_range)) return std::nullopt;
  // Beyond a double's range Python gives infinity or zero.
  return error == std::errc() ? value : std::strtod(plain->c_str(), nullptr);
}

int64_t python_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (operation == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (operation == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (operation == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (operation == "%") {
    result = b == -1 ? 0 : a % b;
    if (result != 0 && (result < 0) != (b < 0)) result += b;
  } else {
    throw std::runtime_error("Unknown operator \"" + std::string(operation) + "\" between integers");
  }
  if (overflows) refuse_large();
  return result;
}

double python_quotient(int64_t a, int64_t b) {
  return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
}

}  // namespace fsdp::data
