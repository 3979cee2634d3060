#include "setup/config/source.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/objects/local_copy.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/text.h"

namespace fsdp::config {
namespace fs = std::filesystem;

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

/// The end of the string that begins at `at`; an unterminated one, which the parser reports, ends with its
/// line.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool multiline = text.substr(at, 3) == std::string(3, quote);
  const std::string mark(multiline ? 3 : 1, quote);
  for (at += mark.size(); at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (text[at] == '\n' && !multiline) {
      return at;
    } else if (text.substr(at).starts_with(mark)) {
      return at + mark.size();
    }
  }
  return text.size();
}

/// Offset at which the nesting of values or keys becomes too deep. Follows strings and comments only to skip
/// them.
std::optional<size_t> too_deep(std::string_view text) {
  int brackets = 0, dots = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = end_of_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++brackets;
    if ((c == ']' || c == '}') && brackets > 0) --brackets;
    if (c == '.') ++dots;
    if (std::string_view("[]{}=,\n").find(c) != std::string_view::npos) dots = 0;
    if (brackets > kMaxNesting || dots > kMaxNesting) return at;
    ++at;
  }
  return std::nullopt;
}

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
      return TextDefect{
          region, concat("not valid TOML, which is UTF-8 text: found the byte 0x", kDigits[code >> 4],
                         kDigits[code & 15], " in column ", region.column + 1, "; remove or re-encode it")};
    }
    at += length;
  }
  return std::nullopt;
}

std::optional<TextDefect> shape_defect(const Source& source) {
  std::string_view text = source.text();
  if (auto at = too_deep(text)) {
    return TextDefect{region_at(text, *at),
                      concat("expected a section, a key and a value, but found more than ", kMaxNesting,
                             " levels of nesting")};
  }
  for (size_t number = 1; number <= source.line_count(); ++number) {
    size_t length = source.line(number).size();
    if (length > kMaxLineBytes) {
      return TextDefect{Region{.line = number, .column = 0, .length = 1},
                        concat("expected at most ", kMaxLineBytes, " bytes in a line; found ", length,
                               "; put the entries of the list on lines of their own")};
    }
  }
  return std::nullopt;
}

namespace {

/// Enough for a list of some thousand files.
constexpr uintmax_t kMaxFileBytes = 256 * 1024;
constexpr size_t kShownBytes = 100;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// Text for a terminal: bytes that could move the cursor or are invalid UTF-8 become "?". Keeps the length.
std::string printable(std::string_view text) {
  std::string result(text);
  for (size_t at = 0; at < result.size();) {
    size_t length = utf8_length(text, at);
    auto code = static_cast<unsigned char>(result[at]);
    if (code == '\t') {
      result[at] = ' ';
    } else if (length == 0 || code < 0x20 || code == 0x7f) {
      result[at] = '?';
    }
    at += std::max<size_t>(length, 1);
  }
  return result;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

/// Moves `at` back to the first byte of a character.
size_t character_start(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && is_continuation(text[at])) --at;
  return at;
}

}  // namespace

Source::Source(std::string name, std::string text, bool has_lines)
    : name_(std::move(name)), text_(std::move(text)), has_lines_(has_lines) {
  if (text_.starts_with(kByteOrderMark)) text_.erase(0, kByteOrderMark.size());
  if (text_.empty() || text_.back() != '\n') text_ += '\n';
  for (size_t start = 0; start < text_.size();) {
    size_t end = text_.find('\n', start);
    size_t stop = end > start && text_[end - 1] == '\r' ? end - 1 : end;
    lines_.push_back(text_.substr(start, stop - start));
    start = end + 1;
  }
}

Source Source::from_text(std::string name, std::string text) {
  return Source(std::move(name), std::move(text), true);
}

Source Source::from_override(std::string text) { return Source("command line", std::move(text), false); }

Source Source::from_file(const fs::path& given) {
  const fs::path path = objects::local_copy(given.string());
  const auto refuse = [&path](const auto&... found) {
    fail(ErrorKind::kUsage, path.empty() ? "the path of the config" : path.string(),
         ": expected a TOML file; found ", found...);
  };
  if (path.empty()) refuse("an empty path");
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    refuse(
        "no such file; correct the name, or write a first config with: fsdp-train init quickstart --output ",
        path.string());
  }
  if (error) refuse("that it cannot be examined: ", error.message());
  if (status.type() == fs::file_type::directory) refuse("a folder");
  // Reading a pipe or a device could block, and every process of a run reads the file.
  if (status.type() != fs::file_type::regular) refuse("a pipe, socket or device");
  uintmax_t size = fs::file_size(path, error);
  if (error) refuse("that it cannot be examined: ", error.message());
  if (size > kMaxFileBytes) {
    refuse(util::human_bytes(static_cast<int64_t>(size)), ", more than the ",
           util::human_bytes(static_cast<int64_t>(kMaxFileBytes)), " that a config may have");
  }
  std::string text;
  try {
    text = util::read_file(path);
  } catch (const util::Error& failure) {
    refuse("that it cannot be read: ", failure.what());
  }
  Source source(given.string(), std::move(text), true);
  source.is_file_ = true;
  return source;
}

std::string_view Source::line(size_t number) const {
  return number >= 1 && number <= lines_.size() ? std::string_view(lines_[number - 1]) : std::string_view();
}

std::string_view Source::text_of(const Region& region) const {
  std::string_view whole = line(region.line);
  return region.column < whole.size() ? whole.substr(region.column, region.length) : std::string_view();
}

std::string Source::where(const std::optional<Region>& region) const {
  return has_lines_ && region ? concat(name_, ":", region->line) : name_;
}

std::string Source::excerpt(const Region& region) const {
  const std::string shown = printable(line(region.line));
  std::string_view whole = shown;
  size_t column = std::min(region.column, whole.size());
  size_t length = std::clamp<size_t>(region.length, 1, std::max<size_t>(whole.size() - column, 1));

  // The part of the line that is shown: all of it, or from shortly before the region.
  size_t start = 0;
  if (whole.size() > kShownBytes && column > kShownBytes / 2) {
    start = character_start(whole, column - kShownBytes / 4);
  }
  size_t end = character_start(whole, std::min(whole.size(), start + kShownBytes));
  std::string head = start > 0 ? "..." : "";
  std::string tail = end < whole.size() ? "..." : "";
  size_t marked_end = std::clamp(column + length, column, std::max(end, column));

  std::string number = has_lines_ ? std::to_string(region.line) : "";
  std::string gutter = has_lines_ ? " | " : "";
  std::string text = "    " + number + gutter + head + shown.substr(start, end - start) + tail;
  size_t marks = std::max<size_t>(1, count_characters(whole.substr(column, marked_end - column)));
  std::string under = "    " + std::string(number.size(), ' ') + gutter +
                      std::string(head.size() + count_characters(whole.substr(start, column - start)), ' ') +
                      std::string(marks, marks == 1 ? '^' : '~');
  return text + "\n" + under;
}

namespace {

/// A wrong file can have thousands of problems.
constexpr size_t kMaxShown = 40;

}  // namespace

void Report::add(const Source& source, const std::optional<Region>& region, const std::string& message) {
  std::string excerpt = region ? concat("\n", source.excerpt(*region)) : "";
  problems_.push_back(concat(source.where(region), ": ", message, excerpt));
}

void Report::throw_if_any() const {
  if (problems_.empty()) return;
  if (problems_.size() == 1) throw util::Error(ErrorKind::kUsage, problems_.front());
  std::string text = concat("the config has ", problems_.size(), " errors:");
  for (size_t i = 0; i < std::min(problems_.size(), kMaxShown); ++i) text += "\n" + problems_[i];
  if (problems_.size() > kMaxShown) text += concat("\nand ", problems_.size() - kMaxShown, " more");
  throw util::Error(ErrorKind::kUsage, text);
}

}  // namespace fsdp::config
