#include "setup/translate/foreign_value.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/util/error.h"
#include "setup/config/source.h"

namespace fsdp::config {
namespace {

using Kind = Literal::Kind;

}  // namespace

Literal text_literal(std::string text) {
  Literal literal;
  literal.kind = Kind::kString;
  literal.text = std::move(text);
  return literal;
}

Literal list_literal(const std::vector<std::string>& texts) {
  Literal literal;
  literal.kind = Kind::kList;
  for (const std::string& text : texts) literal.items.push_back(text_literal(text));
  return literal;
}

Literal toml_literal(std::string_view toml) {
  return parse_toml(Source::from_text("value", concat("[a]\nb = ", toml))).back().value;
}

std::optional<double> number_of(const Literal& literal) {
  if (literal.kind == Kind::kInteger) return static_cast<double>(literal.integer);
  if (literal.kind == Kind::kFloat) return literal.number;
  double number = 0;
  const std::string& text = literal.text;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = literal.kind == Kind::kString && error == std::errc() && !text.empty() &&
                         end == text.data() + text.size();
  return is_number ? std::optional(number) : std::nullopt;
}

std::string word_of(const Literal& literal) {
  return literal.kind == Kind::kBool ? literal.boolean ? "true" : "false" : literal.text;
}

std::vector<std::string> words_of(const Literal& literal) {
  std::vector<std::string> words;
  for (const Literal& item : literal.items) words.push_back(item.text);
  std::string text = literal.kind == Kind::kString ? literal.text : "";
  std::ranges::replace(text, ',', ' ');
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool is_off(const Literal& value) {
  const std::optional<double> number = number_of(value);
  return value.kind == Kind::kNull || (value.kind == Kind::kBool && !value.boolean) ||
         (number && *number <= 0) || (value.kind == Kind::kList && value.items.empty()) ||
         (value.kind == Kind::kTable && value.fields.empty()) ||
         (value.kind == Kind::kString && (value.text.empty() || value.text == "no" || value.text == "none"));
}

}  // namespace fsdp::config
