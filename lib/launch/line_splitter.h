#pragma once

// Turns the bytes of one output stream of a worker into lines.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace fsdp::launch {

/// A line ends with "\n" or "\r\n". Text that ends with a lone "\r" is transient, as a progress bar's: what
/// comes next takes its place. At most `longest_line_bytes` are held: a longer line comes in pieces, cut
/// between UTF-8 characters.
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string_view line)>;
  static constexpr size_t kLongestLineBytes = 256 << 10;

  explicit LineSplitter(size_t longest_line_bytes = kLongestLineBytes)
      : longest_line_bytes_(longest_line_bytes) {}

  /// Takes the next bytes, and calls `on_line` for each line that they complete.
  void feed(std::string_view bytes, const OnLine& on_line);

  /// The stream has ended: completes a last line without a newline; drops transient text.
  void finish(const OnLine& on_line);

  /// What has come of the line so far.
  std::string_view unfinished() const { return line_; }
  /// unfinished() ended with '\r'.
  bool is_transient() const { return after_return_; }
  /// unfinished() took the place of transient text, so it is likely to be transient too.
  bool replaces_transient() const { return replaces_transient_; }

 private:
  void append(std::string_view bytes, const OnLine& on_line);
  void complete(const OnLine& on_line);

  size_t longest_line_bytes_;
  std::string line_;
  bool after_return_ = false;
  bool replaces_transient_ = false;
};

}  // namespace fsdp::launch
