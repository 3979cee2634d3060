#pragma once

// Python's conversions and printing of values, for templates that were written for Python's jinja2. The
// engine calls these functions where its own conversions differ (scripts/cmake/jinja.patch).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::data {

/// repr() of a float: the shortest digits that reproduce the number, such as "1250000.0" and "1e-07".
std::string python_float(double value);
/// A float as json.dumps() writes it, with NaN, Infinity and -Infinity by these names.
std::string json_float(double value);

/// repr() of a text in UTF-8, with the quotes that Python chooses.
std::string python_repr(std::string_view text);

/// str.isspace() of one character.
bool python_is_space(uint32_t code_point);
/// str.strip(), lstrip() and rstrip(). `chars` are the characters to remove; nullopt: white space.
std::string_view python_strip(std::string_view text, bool left, bool right,
                              std::optional<std::string_view> chars = std::nullopt);
/// str.split() and, from the right, rsplit() at white space. `most` limits the cuts unless it is below 0.
std::vector<std::string_view> python_split(std::string_view text, int64_t most, bool from_left);

/// The characters of a text. Bytes that are not UTF-8 are characters.
std::vector<std::string_view> python_characters(std::string_view text);
/// len() of a text.
size_t python_length(std::string_view text);

/// str.upper(), lower() and capitalize() by the simple case mappings of Unicode, except for the German sharp
/// s and the dotted capital I.
std::string python_upper(std::string_view text);
std::string python_lower(std::string_view text);
std::string python_capitalize(std::string_view text);

/// The filter int of jinja2: int(text, base), otherwise int(float(text)); nullopt if the filter takes its
/// default. Throws std::runtime_error for an integer beyond 64 bits.
std::optional<int64_t> python_int_of(std::string_view text, int base);
/// int() of a float. Throws std::runtime_error for a value beyond 64 bits.
int64_t python_int_of(double value);
/// float() of a text; nullopt for a text that is not a number.
std::optional<double> python_float_of(std::string_view text);

/// a + b, a - b, a * b or, unless b is 0, a % b. Throws std::runtime_error for a result beyond 64 bits.
int64_t python_arithmetic(std::string_view operation, int64_t a, int64_t b);
/// a / b. Requires: b is not 0.
double python_quotient(int64_t a, int64_t b);
/// a < b, a <= b, a > b or a >= b.
template <typename Number>
bool python_compare(std::string_view operation, Number a, Number b) {
  if (operation == "<") return a < b;
  if (operation == "<=") return a <= b;
  return operation == ">" ? a > b : a >= b;
}

}  // namespace fsdp::data
