#include "setup/translate/yaml.h"

#include <algorithm>
#include <charconv>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "base/util/error.h"
#include "base/util/text.h"
#include "setup/config/value.h"

namespace fsdp::config {
namespace {

using Kind = Literal::Kind;

constexpr int kDeepestLevel = 32;
/// Far more than a config has; each takes more than a hundred bytes.
constexpr int kMostValues = 10'000;
/// Longest text that may be a number; std::regex recurses over its subject.
constexpr size_t kLongestNumber = 64;

std::string_view stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Whether a plain scalar or key ends here: at a colon before a space or the end, or a comment after a space.
bool is_colon(std::string_view text, size_t at) {
  return text[at] == ':' && (at + 1 == text.size() || text[at + 1] == ' ' || text[at + 1] == '\t');
}
bool is_comment(std::string_view text, size_t at) {
  return text[at] == '#' && (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t');
}

/// Offset of the colon after the key that the text begins with; npos if it begins with no key.
size_t colon_of(std::string_view text) {
  size_t at = 0;
  if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
    for (at = 1; at < text.size() && text[at] != text[0]; ++at) at += text[0] == '"' && text[at] == '\\';
    at = std::min(text.find_first_not_of(" \t", at + 1), text.size());
    return at < text.size() && is_colon(text, at) ? at : std::string_view::npos;
  }
  if (text.starts_with('[') || text.starts_with('{')) return std::string_view::npos;
  for (; at < text.size() && !is_comment(text, at); ++at) {
    if (is_colon(text, at)) return at;
  }
  return std::string_view::npos;
}

bool matches(std::string_view text, const std::regex& pattern) {
  return text.size() <= kLongestNumber && std::regex_match(text.begin(), text.end(), pattern);
}

bool is_one_of(std::string_view text, std::string_view words) {
  return text.find_first_of("| ") == std::string_view::npos &&
         concat("|", words, "|").find(concat("|", text, "|")) != std::string::npos;
}

void read_integer(Literal& literal, std::string digits) {
  literal.kind = Kind::kInteger;
  std::erase(digits, '_');
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.erase(0, 1);
  const int base = digits.starts_with("0b") ? 2 : digits.starts_with("0x") ? 16 : digits[0] == '0' ? 8 : 10;
  digits.erase(0, base == 2 || base == 16 ? 2 : 0);
  if (is_negative) digits.insert(0, "-");
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), literal.integer, base);
  literal.out_of_range = error != std::errc();
}

void read_float(Literal& literal, std::string digits) {
  literal.kind = Kind::kFloat;
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  const size_t dot = digits.find_first_not_of('-');
  if (std::isalpha(static_cast<unsigned char>(digits[dot + 1]))) digits.erase(dot, 1);  // .inf and .nan
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), literal.number);
  literal.out_of_range = error != std::errc();
}

/// Resolves a scalar without quotes by the rules of YAML 1.1 in PyYAML.
Literal plain_scalar(std::string_view text, const Region& region) {
  static const std::regex kInteger("[-+]?(0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)"),
      kFloat(
          "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
          "[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)"),
      kDate("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
      kBase60("[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\\.[0-9_]*)?");
  Literal literal;
  literal.kind = Kind::kString;
  literal.text = text;
  literal.region = region;
  if (text.empty() || is_one_of(text, "~|null|Null|NULL")) {
    literal.kind = Kind::kNull;
  } else if (is_one_of(text, "yes|Yes|YES|true|True|TRUE|on|On|ON")) {
    literal.kind = Kind::kBool;
    literal.boolean = true;
  } else if (is_one_of(text, "no|No|NO|false|False|FALSE|off|Off|OFF")) {
    literal.kind = Kind::kBool;
  } else if (std::string_view("+-.0123456789").find(text[0]) == std::string_view::npos) {
    return literal;
  } else if (matches(text, kInteger)) {
    read_integer(literal, literal.text);
  } else if (matches(text, kFloat)) {
    read_float(literal, literal.text);
  } else if (matches(text, kDate)) {
    literal.kind = Kind::kDate;
  } else if (matches(text, kBase60)) {
    throw SyntaxError{"not read here: YAML 1.1 takes this for a number of base 60; put it in quotes", region};
  }
  return literal;
}

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  const int rest = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static constexpr unsigned char kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(kFirst[rest] | code >> 6 * rest);
  for (int i = rest - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
}

/// Reads the values on one line: scalars, and lists and maps in brackets.
class InlineReader {
 public:
  InlineReader(std::string_view text, size_t line, size_t column, int& values)
      : text_(text), line_(line), column_(column), values_(values) {}

  /// The value, after which nothing but a comment may stand.
  Literal whole() {
    Literal literal = value(/*is_in_brackets=*/false, 1);
    skip_spaces();
    if (at_ < text_.size() && !is_comment(text_, at_)) refuse("expected nothing after the value on its line");
    return literal;
  }

  std::string quoted() {
    const char quote = text_[at_++];
    std::string content;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote && quote == '\'' && at_ < text_.size() && text_[at_] == quote) {
        content += text_[at_++];
      } else if (c == quote) {
        return content;
      } else if (c == '\\' && quote == '"') {
        append_escaped(content);
      } else {
        content += c;
      }
    }
    refuse("a string in quotes must end on its line; write a long one with > and lines below");
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw SyntaxError{why, Region{line_, column_ + std::min(at_, text_.size()), 1}};
  }
  void skip_spaces() { at_ = std::min(text_.find_first_not_of(" \t", at_), text_.size()); }
  bool is_next(char c) const { return at_ < text_.size() && text_[at_] == c; }

  void append_escaped(std::string& content) {
    static constexpr std::string_view kEscapes = "0abtnvfre \"/\\",
                                      kMeanings("\0\a\b\t\n\v\f\r\x1b \"/\\", 13);
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    if (const size_t found = kEscapes.find(c); c != '\0' && found != std::string_view::npos) {
      content += kMeanings[found];
      return;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    const bool is_character = code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    if (digits == 0 || hex.size() < digits || error != std::errc() || end != hex.data() + digits ||
        !is_character) {
      refuse("expected an escape of YAML after \\; write \\\\ for a backslash, or use single quotes");
    }
    at_ += digits;
    append_utf8(content, code);
  }

  Literal value(bool is_in_brackets, int level) {
    if (++values_ > kMostValues) refuse(concat("expected at most ", kMostValues, " values"));
    skip_spaces();
    if (is_next('[') || is_next('{')) return brackets(level);
    const size_t begin = at_;
    if (is_next('"') || is_next('\'')) {
      Literal literal;
      literal.kind = Kind::kString;
      literal.text = quoted();
      literal.region = {line_, column_ + begin, at_ - begin};
      return literal;
    }
    if (at_ < text_.size() && std::string_view("&*!%@`|>?,]}").find(text_[at_]) != std::string_view::npos &&
        !(text_[at_] == '?' && at_ + 1 < text_.size() && text_[at_ + 1] != ' ')) {
      refuse(concat("not read here: a value that begins with ", text_[at_],
                    is_next('&') || is_next('*') ? ", an anchor or its use; write the value itself"
                    : is_next('!')               ? ", a tag; write the value without it"
                                                 : "; put the text in quotes"));
    }
    while (at_ < text_.size() && !is_comment(text_, at_) &&
           !(is_in_brackets && (std::string_view(",[]{}").find(text_[at_]) != std::string_view::npos ||
                                is_colon(text_, at_)))) {
      if (!is_in_brackets && is_colon(text_, at_))
        refuse("expected one key on a line; put the text in quotes");
      ++at_;
    }
    const std::string_view text = stripped(text_.substr(begin, at_ - begin));
    return plain_scalar(text, {line_, column_ + begin, std::max<size_t>(text.size(), 1)});
  }

  Literal brackets(int level) {
    if (level > kDeepestLevel) refuse(concat("expected at most ", kDeepestLevel, " levels of nesting"));
    const bool is_list = text_[at_] == '[';
    const char last = is_list ? ']' : '}';
    Literal result;
    result.kind = is_list ? Kind::kList : Kind::kTable;
    result.region = {line_, column_ + at_++, 1};
    std::set<std::string> names;
    for (skip_spaces(); !is_next(last); skip_spaces()) {
      Literal item = value(/*is_in_brackets=*/true, level + 1);
      skip_spaces();
      if (is_list) {
        result.items.push_back(std::move(item));
      } else {
        if (!is_next(':')) refuse("expected {key: value} on one line; write each key on a line of its own");
        ++at_;
        if (!names.insert(item.text).second) refuse("two keys in braces are equal; keep one of them");
        result.fields.push_back({item.text, value(/*is_in_brackets=*/true, level + 1)});
        skip_spaces();
      }
      if (is_next(',')) {
        ++at_;
      } else if (!is_next(last)) {
        refuse(concat("expected , or ", last,
                      " on the same line; write a long list with a line \"- value\" each"));
      }
    }
    ++at_;
    return result;
  }

  std::string_view text_;
  size_t line_, column_;
  int& values_;
  size_t at_ = 0;
};

class BlockReader {
 public:
  explicit BlockReader(const Source& source) {
    for (size_t number = 1; number <= source.line_count(); ++number) {
      const std::string_view line = source.line(number);
      const size_t indent = std::min(line.find_first_not_of(' '), line.size());
      lines_.push_back({indent, line.substr(indent)});
    }
  }

  Literal document() {
    if (skip_blank() && lines_[at_].indent == 0 && stripped(lines_[at_].text) == "---") ++at_;
    Literal root;
    if (!skip_blank()) return root;
    root = block(lines_[at_].indent, 1);
    if (skip_blank()) refuse("expected a line that is indented as those above it");
    if (root.kind != Kind::kTable) refuse("expected keys with values, such as learning_rate: 2e-5", 0);
    return root;
  }

 private:
  struct Line {
    size_t indent;
    std::string_view text;  ///< the rest of the line
  };

  [[noreturn]] void refuse(const std::string& why, size_t line) const {
    throw SyntaxError{why, Region{line + 1, lines_[line].indent, 1}};
  }
  [[noreturn]] void refuse(const std::string& why) const { refuse(why, at_); }

  /// Goes to the next line with content; returns whether there is one.
  bool skip_blank() {
    while (at_ < lines_.size() && (stripped(lines_[at_].text).empty() || lines_[at_].text.starts_with('#')))
      ++at_;
    if (at_ == lines_.size()) return false;
    if (lines_[at_].text.starts_with('\t')) refuse("YAML is indented with spaces, not tabs; replace the tab");
    return true;
  }

  static bool is_item(std::string_view text) { return text == "-" || text.starts_with("- "); }

  Literal block(size_t indent, int level) {
    if (++values_ > kMostValues) refuse(concat("expected at most ", kMostValues, " values"));
    if (level > kDeepestLevel) refuse(concat("expected at most ", kDeepestLevel, " levels of nesting"));
    const std::string_view text = lines_[at_].text;
    if (indent == 0 && (text.starts_with("---") || text.starts_with("...") || text.starts_with('%'))) {
      refuse("expected one document without directives; remove this line, or what follows it");
    }
    if (is_item(text)) return list(indent, level);
    if (colon_of(text) != std::string_view::npos) return map(indent, level);
    return scalar_line(text, indent);
  }

  /// The value that stands alone on the line, which no deeper line may continue.
  Literal scalar_line(std::string_view text, size_t parent) {
    const Line& line = lines_[at_];
    const size_t column = line.indent + static_cast<size_t>(text.data() - line.text.data());
    Literal literal = InlineReader(text, at_ + 1, column, values_).whole();
    ++at_;
    if (skip_blank() && lines_[at_].indent > parent) {
      refuse(
          "a value must end on its line, but this line is indented deeper; write a long text with > before it");
    }
    return literal;
  }

  Literal list(size_t indent, int level) {
    Literal result;
    result.kind = Kind::kList;
    result.region = {at_ + 1, indent, 1};
    while (skip_blank() && lines_[at_].indent == indent && is_item(lines_[at_].text)) {
      const std::string_view rest = lines_[at_].text.substr(1);
      const size_t spaces = std::min(rest.find_first_not_of(" \t"), rest.size());
      const std::string_view item = rest.substr(spaces);
      if (is_item(item) || (!item.starts_with('#') && colon_of(item) != std::string_view::npos)) {
        lines_[at_] = {indent + 1 + spaces, item};  // a block that begins on the line of its dash
        result.items.push_back(block(lines_[at_].indent, level + 1));
      } else {
        result.items.push_back(value_after(item, indent, level, /*may_be_beside=*/false));
      }
    }
    return result;
  }

  Literal map(size_t indent, int level) {
    Literal result;
    result.kind = Kind::kTable;
    result.region = {at_ + 1, indent, 1};
    std::set<std::string> names;
    while (skip_blank() && lines_[at_].indent == indent) {
      const std::string_view text = lines_[at_].text;
      const size_t colon = colon_of(text);
      if (colon == std::string_view::npos || is_item(text)) refuse("expected a key, a colon and a value");
      const bool is_quoted = text[0] == '"' || text[0] == '\'';
      if (std::string_view("&*!?%@`|>").find(text[0]) != std::string_view::npos || text.starts_with("<<")) {
        refuse("not read here: a key with an anchor, tag or merge; write the keys themselves");
      }
      std::string name = is_quoted ? InlineReader(text, at_ + 1, indent, values_).quoted()
                                   : std::string(stripped(text.substr(0, colon)));
      if (!names.insert(name).second) {
        refuse(concat("a key must appear only once, but ", clipped(name),
                      " is already above; keep one of them"));
      }
      const std::string_view rest = text.substr(colon + 1);
      const size_t spaces = std::min(rest.find_first_not_of(" \t"), rest.size());
      result.fields.push_back(
          {std::move(name), value_after(rest.substr(spaces), indent, level, /*may_be_beside=*/true)});
    }
    if (at_ < lines_.size() && lines_[at_].indent > indent)
      refuse("expected a line indented as the keys above it");
    return result;
  }

  /// The value after a key or dash at `indent`: on its line, or a block below it. A list may have the indent
  /// of its key.
  Literal value_after(std::string_view text, size_t indent, int level, bool may_be_beside) {
    if (++values_ > kMostValues) refuse(concat("expected at most ", kMostValues, " values"));
    if (text.starts_with('|') || text.starts_with('>')) return text_block(text, indent);
    if (!text.empty() && !text.starts_with('#')) return scalar_line(text, indent);
    Literal none;
    none.kind = Kind::kNull;
    none.region = {at_ + 1, lines_[at_].indent, 1};
    ++at_;
    if (!skip_blank()) return none;
    const Line& next = lines_[at_];
    const bool is_below =
        next.indent > indent || (may_be_beside && next.indent == indent && is_item(next.text));
    return is_below ? block(next.indent, level + 1) : none;
  }

  /// Lines after | or >, in which # is text.
  Literal text_block(std::string_view header, size_t parent) {
    Literal literal;
    literal.kind = Kind::kString;
    literal.region = {at_ + 1, lines_[at_].indent, 1};
    const bool is_folded = header[0] == '>';
    const std::string_view mark = stripped(header.substr(1, header.find('#') - 1));
    if (!mark.empty() && mark != "-" && mark != "+") {
      refuse("expected |, |-, |+, >, >- or >+, without a number, at the beginning of a text in lines");
    }
    size_t indent = 0, last_breaks = 0;
    bool was_plain = false;
    for (++at_; at_ < lines_.size(); ++at_) {
      const Line& line = lines_[at_];
      if (line.text.empty() || (stripped(line.text).empty() && line.indent <= parent)) {
        ++last_breaks;
        continue;
      }
      if (line.indent <= parent || (indent != 0 && line.indent < indent)) break;
      if (indent == 0) indent = line.indent;
      const std::string text = std::string(line.indent - indent, ' ') + std::string(line.text);
      const bool is_plain = text[0] != ' ' && text[0] != '\t';
      const bool is_first = literal.text.empty();
      // Of the breaks between two plain lines, folding drops the first, and makes a single one a space.
      const bool folds = is_folded && was_plain && is_plain && !is_first;
      if (folds && last_breaks == 1) literal.text += ' ';
      literal.text += std::string(folds ? last_breaks - 1 : last_breaks, '\n') + text;
      was_plain = is_plain;
      last_breaks = 1;
    }
    if (mark == "+") literal.text += std::string(last_breaks, '\n');
    if (mark.empty() && !literal.text.empty()) literal.text += '\n';
    return literal;
  }

  std::vector<Line> lines_;
  size_t at_ = 0;
  int values_ = 0;
};

}  // namespace

Literal parse_yaml(const Source& source) {
  if (const auto defect = byte_defect(source)) {
    throw SyntaxError{
        "not valid YAML, which is UTF-8 text without control characters; remove or re-encode this byte",
        defect->region};
  }
  return BlockReader(source).document();
}

}  // namespace fsdp::config
