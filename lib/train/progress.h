#pragma once

// What a person sees while a run goes on: on a terminal one line that is drawn over and over, elsewhere plain
// lines.

#include <cstdint>
#include <string>

#include "train/metrics.h"
#include "util/progress_bar.h"

namespace fsdp::train {

using util::progress_on_stderr;
using util::ProgressOutput;

class Progress {
 public:
  Progress(ProgressOutput output, int64_t total_steps);

  void set_total_steps(int64_t total_steps) { total_steps_ = total_steps; }

  /// Shows a step. On a terminal the bar; elsewhere a line.
  void show(const StepMetrics& metrics);

  /// Leaves the bar's last state as an ordinary line, so that other output may follow.
  void finish_line();

 private:
  std::string numbers(const StepMetrics& metrics) const;
  std::string bar(const StepMetrics& metrics) const;

  ProgressOutput output_;
  int64_t total_steps_;
  std::string shown_;
};

}  // namespace fsdp::train
