#pragma once

// A text that configuration comes from: a file, or one override of the command line. It knows how to show a
// place of itself in a message.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::config {

/// A stretch of one line.
struct Region {
  size_t line = 1;    ///< from 1
  size_t column = 0;  ///< bytes before it in the line
  size_t length = 0;  ///< bytes; more than the line has where a value goes on over several lines
};

class Source {
 public:
  /// Reads a file. Throws util::Error(kUsage) if there is none, if it is no ordinary readable file, or if it
  /// is too large to be a configuration.
  static Source from_file(const std::filesystem::path& path);
  /// Configuration text from elsewhere; `name` stands for the file's name in messages.
  static Source from_text(std::string name, std::string text);
  /// One override, shown without a line number.
  static Source from_override(std::string text);

  const std::string& text() const { return text_; }
  std::string_view line(size_t number) const;  ///< from 1, without the line's end; "" past the end
  size_t line_count() const { return lines_.size(); }
  std::string_view text_of(const Region& region) const;  ///< its part within one line

  /// "config.toml:7", or the name alone.
  std::string where(const std::optional<Region>& region) const;
  /// The line and, under it, a mark under the region; long lines are cut around the region.
  std::string excerpt(const Region& region) const;

 private:
  Source(std::string name, std::string text, bool has_lines);

  std::string name_;
  std::string text_;
  bool has_lines_;
  std::vector<std::string> lines_;
};

}  // namespace fsdp::config
