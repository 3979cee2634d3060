#pragma once

// A line on a terminal that is drawn over while work goes on. Elsewhere (a pipe, a file) nothing is drawn.

#include <chrono>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace fsdp::util {

/// Where progress goes.
struct ProgressOutput {
  std::ostream* stream = nullptr;  ///< none: silence (ranks other than 0)
  int columns = 0;                 ///< of the terminal; 0: not a terminal
};

/// The terminal behind stderr, directly or, when FSDP_TERMINAL_COLUMNS is set, behind the launcher.
ProgressOutput progress_on_stderr();

/// "HEAD[####......]TAIL" in at most columns - 1 characters, since a line that wraps cannot be drawn over.
/// The bar is left out where there is no room for it, and the end of the text is cut.
std::string bar_line(std::string_view head, double share, std::string_view tail, int columns);

/// Draws a line over the last one and marks it, by the carriage return at its end, as one to be drawn over.
void draw_over(std::ostream& stream, std::string_view line);

/// How work that is counted in bytes tells its progress: what is being done, bytes done, bytes in all.
using ByteProgress = std::function<void(std::string_view phase, int64_t done_bytes, int64_t total_bytes)>;

/// Counts bytes towards a ByteProgress.
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

/// Draws ByteProgress at most ten times a second; the line is gone when the object is.
class ByteProgressBar {
 public:
  explicit ByteProgressBar(ProgressOutput output) : output_(output) {}
  ~ByteProgressBar();
  ByteProgressBar(const ByteProgressBar&) = delete;
  ByteProgressBar& operator=(const ByteProgressBar&) = delete;

  void show(std::string_view phase, int64_t done_bytes, int64_t total_bytes);

  /// Removes the line, so that other output may follow.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  ProgressOutput output_;
  std::string phase_;
  Clock::time_point phase_begin_, last_drawn_;
  bool drawn_ = false;
};

}  // namespace fsdp::util
