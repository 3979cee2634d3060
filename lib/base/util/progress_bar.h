#pragma once

// Progress as a line that is overwritten on a terminal.

#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace fsdp::util {

struct ProgressOutput {
  std::ostream* stream = nullptr;  ///< null: no output (ranks other than 0)
  int columns = 0;                 ///< width of the terminal; 0: not a terminal
};

/// Returns stderr. If set, FSDP_TERMINAL_COLUMNS is the width of its terminal, which is the launcher's.
ProgressOutput progress_on_stderr();

/// Returns "HEAD[####......]TAIL" in at most columns - 1 characters, since a line that wraps cannot be
/// overwritten. If there is no room, the bar is omitted and the text cut.
std::string bar_line(std::string_view head, double share, std::string_view tail, int columns);

/// Overwrites the last line. Ends with a carriage return, so that the next line overwrites this one.
void draw_over(std::ostream& stream, std::string_view line);

using ByteProgress = std::function<void(std::string_view phase, int64_t done_bytes, int64_t total_bytes)>;

/// Reports a running count of bytes to a ByteProgress, which may be empty.
class ByteCounter {
 public:
  ByteCounter(ByteProgress progress, std::string phase, int64_t total_bytes)
      : progress_(std::move(progress)), phase_(std::move(phase)), total_bytes_(total_bytes) {}
  void add(int64_t bytes) {
    done_bytes_ += bytes;
    if (progress_) progress_(phase_, done_bytes_, total_bytes_);
  }

 private:
  ByteProgress progress_;
  std::string phase_;
  int64_t total_bytes_, done_bytes_ = 0;
};

/// Draws ByteProgress at most ten times a second; the destructor removes the line. If the output is a pipe or
/// a file, a line is written after each `line_interval`.
class ByteProgressBar {
 public:
  explicit ByteProgressBar(ProgressOutput output,
                           std::chrono::milliseconds line_interval = std::chrono::seconds(10))
      : output_(output), line_interval_(line_interval) {}
  ~ByteProgressBar();
  ByteProgressBar(const ByteProgressBar&) = delete;
  ByteProgressBar& operator=(const ByteProgressBar&) = delete;

  void show(std::string_view phase, int64_t done_bytes, int64_t total_bytes);

  /// Removes the line before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  ProgressOutput output_;
  std::chrono::milliseconds line_interval_;
  std::string phase_;
  /// Returns " 1.0 GiB of 3.0 GiB", with speed and remaining time once they are known.
  std::string numbers(int64_t done_bytes, int64_t total_bytes, Clock::time_point now) const;

  Clock::time_point phase_begin_, last_drawn_;
  bool drawn_ = false;
};

}  // namespace fsdp::util
