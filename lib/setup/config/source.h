#pragma once

// A text with configuration (a file, or one override of the command line), excerpts of it for messages, and
// the report of everything that is wrong with it.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

/// Part of a line.
struct Region {
  size_t line = 1;    ///< counted from 1
  size_t column = 0;  ///< bytes before it in the line
  size_t length = 0;  ///< bytes; exceeds the line if a value spans several lines
};

class Source {
 public:
  /// Reads a file. Throws util::Error(kUsage) if it does not exist, is not a readable regular file, or is too
  /// large to be a configuration.
  static Source from_file(const std::filesystem::path& path);
  /// Text from elsewhere; `name` replaces the file's name in messages.
  static Source from_text(std::string name, std::string text);
  /// One override, shown without a line number.
  static Source from_override(std::string text);

  const std::string& name() const { return name_; }  ///< path of a file
  bool is_file() const { return is_file_; }
  const std::string& text() const { return text_; }
  std::string_view line(size_t number) const;  ///< counted from 1, without its end; "" past the last
  size_t line_count() const { return lines_.size(); }
  std::string_view text_of(const Region& region) const;  ///< its part within one line

  /// "config.toml:7", or the name alone.
  std::string where(const std::optional<Region>& region) const;
  /// The line, cut around the region if it is long, and below it a mark under the region.
  std::string excerpt(const Region& region) const;

 private:
  Source(std::string name, std::string text, bool has_lines);

  std::string name_;
  std::string text_;
  bool has_lines_;
  bool is_file_ = false;
  std::vector<std::string> lines_;
};

/// Collects everything that is wrong with a configuration, for one error.
class Report {
 public:
  /// `message` says what was expected and what was found; the report adds the place and an excerpt.
  void add(const Source& source, const std::optional<Region>& region, const std::string& message);
  bool empty() const { return problems_.empty(); }
  /// Throws util::Error(kUsage) with every problem, if there are any.
  void throw_if_any() const;

 private:
  std::vector<std::string> problems_;
};

/// Bytes of the UTF-8 character that starts at `at`, or 0 if it is invalid (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF).
size_t utf8_length(std::string_view text, size_t at);

struct TextDefect {
  Region region;
  std::string message;
};

/// Bytes that TOML does not allow: invalid UTF-8, or control characters.
std::optional<TextDefect> byte_defect(const Source& source);

/// Text that the TOML parser cannot handle: brackets or dotted keys nested so deeply that recursion could
/// exhaust the stack, or lines so long that its quadratic time would look like a hang.
std::optional<TextDefect> shape_defect(const Source& source);

}  // namespace fsdp::config
