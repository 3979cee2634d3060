#include "cli/validators.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::cli {
namespace {

using util::concat;

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

CLI::Validator number_that(const std::string& bounds, std::function<bool(double)> is_allowed) {
  return CLI::Validator(
      [bounds, is_allowed = std::move(is_allowed)](const std::string& text) -> std::string {
        const auto value = number_in(text);
        if (value && is_allowed(*value)) return "";
        return concat("expected a number ", bounds, "; found ", text.empty() ? "an empty word" : text);
      },
      bounds);
}

}  // namespace

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("expected a name; found an empty word; is a variable not set?")
                            : std::string();
      },
      "");
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  return CLI::Validator(
      [choices](const std::string& text) -> std::string {
        for (const std::string& choice : choices) {
          if (text == choice) return "";
        }
        const std::string near = util::nearest_choice(text, choices);
        return concat("expected ", choices.size() > 1 ? "one of " : "", util::join(choices, ", "), "; found ",
                      text.empty() ? "an empty word" : util::shell_word(text),
                      near.empty() ? "" : concat("; did you mean ", near, "?"));
      },
      concat("{", util::join(choices, ","), "}"));
}

CLI::Validator at_least(double min) {
  return number_that(concat(">= ", min), [min](double value) { return value >= min; });
}

CLI::Validator above(double min) {
  return number_that(concat("> ", min), [min](double value) { return value > min; });
}

CLI::Validator between(int64_t min, int64_t max) {
  return number_that(concat("from ", min, " to ", max), [min, max](double value) {
    return value >= static_cast<double>(min) && value <= static_cast<double>(max);
  });
}

}  // namespace fsdp::cli
