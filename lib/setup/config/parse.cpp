#include "setup/config/parse.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <iterator>
#include <sstream>
#include <system_error>
#include <toml.hpp>
#include <tuple>
#include <utility>

#include "base/util/error.h"
#include "setup/config/value.h"

namespace fsdp::config {
namespace {

/// Finds the library's values in the text.
class ValuePlaces {
 public:
  explicit ValuePlaces(const Source& source) : source_(source) {
    const std::string& text = source.text();
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
      line_begins_.push_back(begin);
  }

  const Source& source() const { return source_; }

  /// toml11 4 counts lines once; toml11 3 counts them from the beginning for each value that is asked for its
  /// location, so that its region is looked up here.
  Region of(const toml::value& value) const {
#if TOML11_VERSION_MAJOR >= 4
    const auto location = value.location();
    return {.line = location.first_line_number(),
            .column = location.first_column_number() - 1,
            .length = location.length()};
#else
    const auto* region = dynamic_cast<const toml::detail::region*>(toml::detail::get_region(value));
    if (region == nullptr) return {};  // a table without a heading of its own
    const auto at = static_cast<size_t>(region->first() - region->begin());
    const auto next = std::upper_bound(line_begins_.begin(), line_begins_.end(), at);
    if (next == line_begins_.begin()) return {};
    return {.line = static_cast<size_t>(next - line_begins_.begin()),
            .column = at - *std::prev(next),
            .length = region->size()};
#endif
  }

 private:
  const Source& source_;
  std::vector<size_t> line_begins_;
};

/// The number without underscores and plus sign.
std::string bare_number(std::string_view written) {
  std::string digits(written);
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  return digits;
}

/// The TOML library silently saturates numbers that do not fit, and parses them by the global locale; so they
/// are parsed again from the text.
template <typename Number, typename... Base>
void parse_number(Literal& literal, const std::string& digits, Number& number, Base... base) {
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base...);
  FSDP_CHECK(error == std::errc::result_out_of_range || end == digits.data() + digits.size(),
             "not a number: ", literal.text);
  literal.out_of_range = error != std::errc();
}

void read_integer(Literal& literal) {
  std::string digits = bare_number(literal.text);
  for (const auto& [prefix, base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (digits.starts_with(prefix)) return parse_number(literal, digits.substr(2), literal.integer, base);
  }
  parse_number(literal, digits, literal.integer);
}

bool stands_before(const Region& a, const Region& b) {
  return std::tie(a.line, a.column) < std::tie(b.line, b.column);
}

Literal literal_of(const toml::value& value, const ValuePlaces& places);

std::vector<Literal::Field> fields_of(const toml::value& table, const ValuePlaces& places) {
  std::vector<Literal::Field> fields;
  for (const auto& [name, value] : table.as_table()) fields.push_back({name, literal_of(value, places)});
  std::sort(fields.begin(), fields.end(),
            [](const auto& a, const auto& b) { return stands_before(a.value.region, b.value.region); });
  return fields;
}

Literal literal_of(const toml::value& value, const ValuePlaces& places) {
  Literal literal;
  literal.region = places.of(value);
  literal.text = places.source().text_of(literal.region);
  using Kind = Literal::Kind;
  switch (value.type()) {
    case toml::value_t::string:
      literal.kind = Kind::kString;
      literal.text = toml::get<std::string>(value);
      break;
    case toml::value_t::integer:
      literal.kind = Kind::kInteger;
      read_integer(literal);
      break;
    case toml::value_t::floating:
      literal.kind = Kind::kFloat;
      parse_number(literal, bare_number(literal.text), literal.number);
      break;
    case toml::value_t::boolean:
      literal.kind = Kind::kBool;
      literal.boolean = value.as_boolean();
      break;
    case toml::value_t::array:
      literal.kind = Kind::kList;
      for (const toml::value& item : value.as_array()) {
        literal.items.push_back(literal_of(item, places));
      }
      break;
    case toml::value_t::table:
      literal.kind = Kind::kTable;
      literal.fields = fields_of(value, places);
      break;
    default:
      literal.kind = Kind::kDate;
      break;
  }
  return literal;
}

std::vector<TomlEntry> entries_of(const toml::value& root, const Source& source) {
  const ValuePlaces places(source);
  std::vector<TomlEntry> entries;
  for (const auto& [name, value] : root.as_table()) {
    if (!value.is_table()) {
      entries.push_back({.section = "", .name = name, .value = literal_of(value, places)});
      continue;
    }
    Literal heading;
    heading.region = places.of(value);
    entries.push_back({.section = name, .name = "", .value = heading});
    for (const auto& [key, item] : value.as_table()) {
      entries.push_back({.section = name, .name = key, .value = literal_of(item, places)});
    }
  }
  // The library's tables are unordered.
  std::sort(entries.begin(), entries.end(), [](const TomlEntry& a, const TomlEntry& b) {
    return std::tie(a.value.region.line, a.value.region.column, a.section, a.name) <
           std::tie(b.value.region.line, b.value.region.column, b.section, b.name);
  });
  return entries;
}

/// A place in the library's message, from a pair of lines " 3 | text" and "   |   ^--- comment".
struct Shown {
  Region region;
  std::string comment;
};

std::vector<Shown> shown_places(const std::vector<std::string>& lines, const Source& source) {
  std::vector<Shown> places;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    size_t bar = lines[i].find(" | ");
    size_t number_at = lines[i].find_first_not_of(' ');
    if (bar == std::string::npos || number_at >= bar || !lines[i + 1].starts_with(std::string(bar, ' '))) {
      continue;
    }
    size_t number = 0;
    auto [end, error] = std::from_chars(lines[i].data() + number_at, lines[i].data() + bar, number);
    size_t mark = lines[i + 1].find_first_of("^~", bar + 3);
    if (error != std::errc() || end != lines[i].data() + bar || mark == std::string::npos) continue;
    if (number < 1 || number > source.line_count()) continue;
    size_t after = lines[i + 1].find_first_not_of("^~-", mark);
    std::string comment = after == std::string::npos ? "" : lines[i + 1].substr(after + 1);
    places.push_back({{.line = number, .column = mark - bar - 3, .length = 1}, comment});
  }
  return places;
}

/// "[error] toml::parse_boolean: text" -> "text".
std::string plain_title(std::string title) {
  if (title.starts_with("[error]")) title.erase(0, 7);
  title.erase(0, title.find_first_not_of(' '));
  if (title.starts_with("toml::")) {
    size_t colon = title.find(':', 6);
    title.erase(0, colon == std::string::npos ? title.size() : colon + 1);
    title.erase(0, title.find_first_not_of(' '));
  }
  while (!title.empty() && (title.back() == '.' || title.back() == ' ')) title.pop_back();
  return title;
}

/// Plain words for the library's obscure titles; empty for the others.
std::string plain_words(const std::string& title) {
  if (title.find("not a valid string") != std::string::npos) {
    return "a string that is not closed on its line, or that has an escape unknown to TOML";
  }
  if (title.find("an invalid key appeared") != std::string::npos) {
    return "a line that is neither key = value nor [section]";
  }
  return "";
}

/// The word in place of a value; empty if there is something else.
std::string word_at(const Source& source, const Region& region) {
  std::string_view line = source.line(region.line);
  std::string_view before = line.substr(0, std::min(region.column, line.size()));
  size_t last = before.find_last_not_of(" \t");
  if (last == std::string_view::npos ||
      std::string_view("=[,").find(before[last]) == std::string_view::npos) {
    return "";
  }
  std::string_view rest = line.substr(before.size());
  if (rest.empty() || !std::isalpha(static_cast<unsigned char>(rest.front()))) return "";
  return std::string(rest.substr(0, rest.find_first_of(" \t,]#")));
}

/// Reduces the library's message, a page with its own excerpts, to one sentence and a place.
SyntaxError syntax_error(const std::string& what, const Source& source) {
  std::vector<std::string> lines;
  std::istringstream stream(what);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::string title = lines.empty() ? "" : plain_title(lines.front());
  std::vector<Shown> places = shown_places(lines, source);

  SyntaxError error;
  if (places.empty()) {
    error.message = "not valid TOML: " + (title.empty() ? "it cannot be parsed" : clipped(title, 200));
    return error;
  }
  const Shown& place = places.back();
  error.region = place.region;
  if (title.find("already exists") != std::string::npos) {
    // toml11 3 shows the first one first, toml11 4 last.
    const auto [first, second] = std::minmax(places.front().region, place.region, stands_before);
    error.region = second;
    error.message = concat("a key or section must appear only once, but this one is already on line ",
                           first.line, "; keep one of them");
    return error;
  }
  std::string word = word_at(source, place.region);
  if (!word.empty()) {
    error.region->length = word.size();
    error.message = "not valid TOML: " + clipped(word) + " is not a value; text needs quotes";
    return error;
  }
  if (std::string plain = plain_words(title); !plain.empty()) {
    error.message = "not valid TOML: " + plain;
    return error;
  }
  error.message = "not valid TOML: " + (title.empty() ? place.comment : title);
  if (!title.empty() && !place.comment.empty() && place.comment != "here") {
    error.message += " (" + place.comment + ")";
  }
  if (places.front().region.line != place.region.line)
    error.message += concat("; see also line ", places.front().region.line);
  return error;
}

}  // namespace

std::vector<TomlEntry> parse_toml(const Source& source) {
  if (auto defect = byte_defect(source)) throw SyntaxError{defect->message, defect->region};
  if (auto defect = shape_defect(source)) throw SyntaxError{defect->message, defect->region};
  try {
    std::istringstream stream(source.text());
    return entries_of(toml::parse(stream, "config"), source);
  } catch (const toml::exception& error) {
    throw syntax_error(error.what(), source);
  } catch (const std::exception& error) {
    throw SyntaxError{concat("not valid TOML: it cannot be parsed: ", error.what()), {}};
  }
}

std::string described(const Literal& literal) {
  switch (literal.kind) {
    case Literal::Kind::kString:
      return "the string " + quoted_text(clipped(literal.text));
    case Literal::Kind::kInteger:
      return "the integer " + clipped(literal.text) +
             (literal.out_of_range ? ", which does not fit in 64 bits" : "");
    case Literal::Kind::kFloat:
      return "the float " + clipped(literal.text) +
             (literal.out_of_range ? ", which does not fit in 64 bits" : "");
    case Literal::Kind::kBool:
      return literal.boolean ? "true" : "false";
    case Literal::Kind::kDate:
      return "the date or time " + clipped(literal.text);
    case Literal::Kind::kList:
      return concat("a list of ", literal.items.size(), literal.items.size() == 1 ? " value" : " values");
    case Literal::Kind::kTable:
      return "a table";
    case Literal::Kind::kNull:
      return "no value";
  }
  return "something else";
}

}  // namespace fsdp::config
