#include "train/progress.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"
#include "util/text.h"

namespace fsdp::train {
namespace {

/// 0.4321 -> "43.2%".
std::string percent(double share) { return util::fixed(100 * share, 1) + "%"; }

}  // namespace

Progress::Progress(ProgressOutput output, int64_t total_steps) : output_(output), total_steps_(total_steps) {}

void Progress::show(const StepMetrics& metrics) {
  if (output_.stream == nullptr) return;
  if (output_.columns > 0) {
    shown_ = bar(metrics);
    util::draw_over(*output_.stream, shown_);
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
  std::string text = util::concat(
      "loss ", util::fixed(metrics.loss, 4), "  ppl ", util::fixed(std::exp(metrics.loss), 2), "  norm ",
      util::fixed(metrics.grad_norm, 2), "  lr ", util::fixed(metrics.lr, 6), "  ",
      util::with_commas(std::llround(metrics.tokens_per_second)), " tok/s  ",
      util::human_bytes(metrics.gpu ? metrics.gpu->peak_reserved_bytes : metrics.peak_memory_bytes), "  ETA ",
      util::human_duration(left_seconds));
  // Last, because a terminal that is too narrow cuts the end off.
  if (metrics.mfu) text += util::concat("  mfu ", percent(*metrics.mfu));
  if (metrics.step_seconds > 0) {
    text += util::concat("  data ", percent(metrics.data_wait_seconds / metrics.step_seconds));
  }
  if (metrics.loss_scale) text += util::concat("  scale ", *metrics.loss_scale);
  if (metrics.skipped_steps) text += util::concat("  skipped ", *metrics.skipped_steps);
  return text;
}

std::string Progress::bar(const StepMetrics& metrics) const {
  double share = static_cast<double>(metrics.step) / static_cast<double>(std::max<int64_t>(total_steps_, 1));
  return util::bar_line(util::concat(metrics.step, "/", total_steps_, " "), share,
                        util::concat(" ", numbers(metrics)), output_.columns);
}

}  // namespace fsdp::train
