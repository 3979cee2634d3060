#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {

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

Progress::Progress(ProgressOutput output, int64_t total_steps) : output_(output), total_steps_(total_steps) {}

void Progress::show(const StepMetrics& metrics) {
  if (output_.stream == nullptr) return;
  if (output_.columns > 0) {
    shown_ = bar(metrics);
    // The carriage return at the end marks the line as one to be drawn over, also for the launcher.
    *output_.stream << "\033[K" << shown_ << '\r' << std::flush;
  } else {
    *output_.stream << "step " << metrics.step << '/' << total_steps_ << "  " << numbers(metrics)
                    << std::endl;
  }
}

void Progress::finish_line() {
  if (shown_.empty()) return;
  *output_.stream << "\033[K" << shown_ << std::endl;
  shown_.clear();
}

std::string Progress::numbers(const StepMetrics& metrics) const {
  double left_seconds = static_cast<double>(total_steps_ - metrics.step) * metrics.step_seconds;
  return util::concat("loss ", util::fixed(metrics.loss, 4), "  ppl ", util::fixed(std::exp(metrics.loss), 2),
                      "  norm ", util::fixed(metrics.grad_norm, 2), "  lr ", util::fixed(metrics.lr, 6), "  ",
                      util::with_commas(std::llround(metrics.tokens_per_second)), " tok/s  ",
                      util::human_bytes(metrics.peak_memory_bytes), "  ETA ",
                      util::human_duration(left_seconds));
}

std::string Progress::bar(const StepMetrics& metrics) const {
  double share = static_cast<double>(metrics.step) / static_cast<double>(std::max<int64_t>(total_steps_, 1));
  std::string head = util::concat(metrics.step, "/", total_steps_, " ");
  std::string tail = util::concat(" ", numbers(metrics));
  int64_t room = output_.columns - 1 - static_cast<int64_t>(head.size() + tail.size()) - 2;
  if (room >= 4) {
    room = std::min<int64_t>(room, 30);
    auto filled = static_cast<size_t>(std::floor(share * static_cast<double>(room)));
    head += util::concat("[", std::string(filled, '#'), std::string(static_cast<size_t>(room) - filled, '.'),
                         "]");
  }
  std::string line = head + tail;
  // A line that wraps cannot be drawn over.
  return line.substr(0, static_cast<size_t>(std::max(output_.columns - 1, 1)));
}

}  // namespace fsdp::train
