#include "setup/config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/parameter_groups.h"

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
      result += util::printed("\\u%04X", static_cast<unsigned>(code));
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
  // 10xxxxxx: a continuation byte of UTF-8.
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return std::string(text.substr(0, length)) + "...";
}

namespace {

using Strings = std::vector<std::string>;
using Floats = std::vector<double>;

bool number_is_allowed(const Constraint& c, double value) {
  if (c.also && value == *c.also) return true;
  if (!std::isfinite(value)) return false;
  if (c.min && (c.above_min ? value <= *c.min : value < *c.min)) return false;
  if (c.max && (c.below_max ? value >= *c.max : value > *c.max)) return false;
  return true;
}

/// The form of `value` in Constraint::choices.
std::string as_choice(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text ? *text : toml_text(value);
}

std::string choices_text(const Constraint& c, const Value& example) {
  Strings shown = c.choices;
  if (std::holds_alternative<std::string>(example)) {
    std::transform(shown.begin(), shown.end(), shown.begin(), quoted_text);
  }
  return util::join(shown, ", ");
}

/// 1000000 as "1000000", 0.5 as "0.5".
std::string bound_text(double bound) {
  bool whole = std::abs(bound) < 1e15 && bound == std::floor(bound);
  return whole ? std::to_string(static_cast<int64_t>(bound)) : toml_text(bound);
}

std::string bounds_text(const Constraint& c) {
  std::string text;
  if (c.min) text += (c.above_min ? "> " : ">= ") + bound_text(*c.min);
  if (c.max) text += (text.empty() ? "" : " and ") + ((c.below_max ? "< " : "<= ") + bound_text(*c.max));
  if (c.also) text += (text.empty() ? "or " : ", or ") + bound_text(*c.also);
  return text;
}

std::string spaced(const std::string& text) { return text.empty() ? text : " " + text; }

}  // namespace

Constraint at_least(double min) { return {.min = min}; }
Constraint between(double min, double max) { return {.min = min, .max = max}; }
Constraint above(double min) { return {.min = min, .above_min = true}; }
Constraint from_up_to_below(double min, double max) { return {.min = min, .max = max, .below_max = true}; }
Constraint one_of(Strings choices) { return {.choices = std::move(choices)}; }
Constraint non_empty() { return {.non_empty = true}; }

bool allows(const Constraint& c, const Value& value) {
  if (!c.choices.empty()) {
    return std::find(c.choices.begin(), c.choices.end(), as_choice(value)) != c.choices.end();
  }
  return std::visit(
      [&c](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return is_printable(held) && !(c.non_empty && held.empty());
        } else if constexpr (std::is_same_v<Held, bool>) {
          return true;
        } else if constexpr (std::is_same_v<Held, int64_t> || std::is_same_v<Held, double>) {
          return number_is_allowed(c, static_cast<double>(held));
        } else if constexpr (std::is_same_v<Held, ParameterGroups>) {
          return are_allowed(held);
        } else {
          if (c.non_empty && held.empty()) return false;
          if (c.length > 0 && held.size() != c.length) return false;
          return std::all_of(held.begin(), held.end(), [&](const auto& item) {
            if constexpr (std::is_same_v<Held, Strings>) {
              return !item.empty() && is_printable(item);
            } else {
              return number_is_allowed(c, static_cast<double>(item));
            }
          });
        }
      },
      value);
}

std::string expectation(const Constraint& c, const Value& example) {
  if (c.choices.size() == 1) return choices_text(c, example);
  if (!c.choices.empty()) return "one of " + choices_text(c, example);
  return std::visit(
      [&c](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return c.non_empty ? "a non-empty string of printable text" : "a string of printable text";
        } else if constexpr (std::is_same_v<Held, bool>) {
          return "true or false";
        } else if constexpr (std::is_same_v<Held, int64_t>) {
          return "an integer" + spaced(bounds_text(c));
        } else if constexpr (std::is_same_v<Held, double>) {
          return "a number" + spaced(bounds_text(c));
        } else if constexpr (std::is_same_v<Held, Strings>) {
          return c.non_empty ? "a list of at least one non-empty string, such as [\"one\", \"two\"]"
                             : "a list of non-empty strings, such as [\"one\", \"two\"]";
        } else if constexpr (std::is_same_v<Held, ParameterGroups>) {
          return "a list of tables, each with a pattern (names with * and ?) and at least one of lr "
                 "or lr_scale, and weight_decay, which are numbers >= 0";
        } else if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
          return "a list of integers" + spaced(bounds_text(c));
        } else {
          return "a list of " + (c.length > 0 ? std::to_string(c.length) + " " : std::string()) + "numbers" +
                 spaced(bounds_text(c));
        }
      },
      example);
}

std::string limits(const Constraint& c, const Value& example) {
  if (!c.choices.empty()) return choices_text(c, example) + (c.because.empty() ? "" : ": " + c.because);
  if (c.length > 0) return std::to_string(c.length) + " numbers" + spaced(bounds_text(c));
  if (c.non_empty) return "not empty";
  return bounds_text(c);
}

std::string type_name(const Value& example) {
  static const char* const kNames[] = {
      "string",         "integer",          "float",         "bool", "list of strings",
      "list of floats", "list of integers", "list of tables"};
  static_assert(std::size(kNames) == std::variant_size_v<Value>);
  return kNames[example.index()];
}

}  // namespace fsdp::config
