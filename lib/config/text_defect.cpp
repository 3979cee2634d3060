#include "config/text_defect.h"

#include <cstddef>
#include <string_view>

#include "util/error.h"

namespace fsdp::config {

size_t utf8_length(std::string_view text, size_t at) {
  auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  unsigned first = byte(0);
  if (first < 0x80) return 1;
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  unsigned second = byte(1);
  bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  bool surrogate = first == 0xed && second >= 0xa0;
  bool too_large = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

namespace {

/// Far more than any key needs.
constexpr int kMaxNesting = 32;
constexpr size_t kMaxLineBytes = 32 * 1024;

bool is_forbidden_control(std::string_view text, size_t at) {
  auto code = static_cast<unsigned char>(text[at]);
  if (code == '\r') return at + 1 >= text.size() || text[at + 1] != '\n';
  return (code < 0x20 && code != '\t' && code != '\n') || code == 0x7f;
}

/// Follows strings, comments and brackets only to count the nesting of values and keys.
class NestingScan {
 public:
  explicit NestingScan(std::string_view text) : text_(text) {}

  /// Where the nesting becomes too deep.
  std::optional<size_t> too_deep() {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') {
        skip_to_line_end();
        continue;
      }
      count(c);
      if (brackets_ > kMaxNesting || dots_ > kMaxNesting) return at_;
      ++at_;
    }
    return std::nullopt;
  }

 private:
  void count(char c) {
    switch (c) {
      case '[':
      case '{':
        ++brackets_;
        dots_ = 0;
        break;
      case ']':
      case '}':
        if (brackets_ > 0) --brackets_;
        dots_ = 0;
        break;
      case '=':
      case ',':
      case '\n':
        dots_ = 0;
        break;
      case '.':
        ++dots_;
        break;
      default:
        break;
    }
  }

  void skip_to_line_end() {
    at_ = text_.find('\n', at_);
    if (at_ == std::string_view::npos) at_ = text_.size();
  }

  void skip_string(char quote) {
    std::string_view rest = text_.substr(at_);
    bool multiline = rest.size() >= 3 && rest[1] == quote && rest[2] == quote;
    at_ += multiline ? 3 : 1;
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '\\' && quote == '"') {
        at_ += 2;
        continue;
      }
      if (c == '\n' && !multiline) return;  // unterminated: the parser reports it
      if (c == quote) {
        if (!multiline) {
          ++at_;
          return;
        }
        if (text_.substr(at_, 3) == std::string(3, quote)) {
          at_ += 3;
          return;
        }
      }
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int brackets_ = 0;
  int dots_ = 0;
};

Region region_at(std::string_view text, size_t at) {
  Region region{.line = 1, .column = 0, .length = 1};
  for (size_t i = 0; i < at; ++i) {
    ++region.column;
    if (text[i] == '\n') {
      ++region.line;
      region.column = 0;
    }
  }
  return region;
}

}  // namespace

std::optional<TextDefect> byte_defect(const Source& source) {
  std::string_view text = source.text();
  for (size_t at = 0; at < text.size();) {
    size_t length = utf8_length(text, at);
    if (length == 0 || is_forbidden_control(text, at)) {
      static const char* const kDigits = "0123456789abcdef";
      auto code = static_cast<unsigned char>(text[at]);
      Region region = region_at(text, at);
      return TextDefect{region, util::concat("expected TOML, a text in UTF-8; found the byte 0x",
                                             kDigits[code >> 4], kDigits[code & 15], " in column ",
                                             region.column + 1, "; write plain UTF-8 text")};
    }
    at += length;
  }
  return std::nullopt;
}

std::optional<TextDefect> shape_defect(const Source& source) {
  std::string_view text = source.text();
  if (auto at = NestingScan(text).too_deep()) {
    return TextDefect{region_at(text, *at),
                      util::concat("expected a section, a key and a value; found more than ", kMaxNesting,
                                   " levels of nesting")};
  }
  for (size_t number = 1; number <= source.line_count(); ++number) {
    size_t length = source.line(number).size();
    if (length > kMaxLineBytes) {
      return TextDefect{Region{.line = number, .column = 0, .length = 1},
                        util::concat("expected at most ", kMaxLineBytes, " bytes in a line; found ", length,
                                     "; give the entries of a list lines of their own")};
    }
  }
  return std::nullopt;
}

}  // namespace fsdp::config
