#include "base/util/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"

namespace fsdp::util {
namespace {

constexpr int64_t kNarrowestBar = 4, kWidestBar = 30;
constexpr std::chrono::milliseconds kDrawInterval{100};

}  // namespace

ProgressOutput progress_on_stderr() {
  ProgressOutput output{&std::cerr, 0};
  if (const char* columns = std::getenv("FSDP_TERMINAL_COLUMNS")) {
    output.columns = std::atoi(columns);
  } else if (isatty(STDERR_FILENO)) {
    winsize size{};
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    output.columns = known ? size.ws_col : 80;
  }
  return output;
}

std::string bar_line(std::string_view head, double share, std::string_view tail, int columns) {
  std::string line(head);
  int64_t room = columns - 1 - static_cast<int64_t>(head.size() + tail.size()) - 2;
  if (room >= kNarrowestBar) {
    room = std::min(room, kWidestBar);
    auto filled = static_cast<size_t>(std::floor(std::clamp(share, 0.0, 1.0) * static_cast<double>(room)));
    line += concat("[", std::string(filled, '#'), std::string(static_cast<size_t>(room) - filled, '.'), "]");
  }
  line += tail;
  return line.substr(0, static_cast<size_t>(std::max(columns - 1, 1)));
}

void draw_over(std::ostream& stream, std::string_view line) {
  // The line is one write, because other processes use the same terminal.
  stream << concat("\033[K", line, '\r') << std::flush;
}

ByteProgressBar::~ByteProgressBar() { clear(); }

void ByteProgressBar::show(std::string_view phase, int64_t done_bytes, int64_t total_bytes) {
  if (output_.stream == nullptr) return;
  const bool is_terminal = output_.columns > 0;
  const auto now = Clock::now();
  if (phase != phase_) {
    phase_ = phase;
    phase_begin_ = last_drawn_ = now;
    if (!is_terminal) return;
  } else if (now - last_drawn_ < (is_terminal ? kDrawInterval : line_interval_)) {
    return;
  }
  last_drawn_ = now;
  const std::string tail = numbers(done_bytes, total_bytes, now);
  if (!is_terminal) {
    *output_.stream << concat(log_line_begin(), phase_, tail, "\n") << std::flush;
    return;
  }
  drawn_ = true;
  const double share =
      total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes) : 1.0;
  draw_over(*output_.stream, bar_line(phase_ + " ", share, tail, output_.columns));
}

std::string ByteProgressBar::numbers(int64_t done_bytes, int64_t total_bytes, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - phase_begin_).count();
  std::string text = concat(" ", human_bytes(done_bytes), " of ", human_bytes(total_bytes));
  if (seconds <= 0.5 || done_bytes <= 0) return text;
  const double bytes_per_second = static_cast<double>(done_bytes) / seconds;
  return text + concat("  ", human_bytes(std::llround(bytes_per_second)), "/s  ETA ",
                       human_duration(static_cast<double>(total_bytes - done_bytes) / bytes_per_second));
}

void ByteProgressBar::clear() {
  if (!drawn_) return;
  *output_.stream << "\033[K" << std::flush;
  drawn_ = false;
}

}  // namespace fsdp::util
