#pragma once

// What a person sees while a run goes on: on a terminal one line that is drawn over and over, elsewhere plain
// lines.

#include <cstdint>
#include <ostream>
#include <string>

#include "train/metrics.h"

namespace fsdp::train {

/// Where progress goes.
struct ProgressOutput {
  std::ostream* stream = nullptr;  ///< none: silence (ranks other than 0)
  int columns = 0;                 ///< of the terminal; 0: not a terminal, plain lines
};

/// The terminal behind stderr, directly or, when FSDP_TERMINAL_COLUMNS is set, behind the launcher.
ProgressOutput progress_on_stderr();

class Progress {
 public:
  Progress(ProgressOutput output, int64_t total_steps);

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
