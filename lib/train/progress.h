#pragma once

// What a person sees while a run goes on: on a terminal one line that is drawn over and over, elsewhere plain
// lines.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "train/metrics.h"
#include "util/progress_bar.h"

namespace fsdp::train {

using util::progress_on_stderr;
using util::ProgressOutput;

/// On a terminal a thread of its own draws the line once a second while something is under way, so that a
/// slow step can be told from a run that hangs. The methods may be called from any thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress(ProgressOutput output, int64_t total_steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total_steps(int64_t total_steps);

  /// From now on, until the next begin() or finish_line(), the run is at `what` ("step 7", "validation"),
  /// after `steps_done` steps.
  void begin(std::string what, int64_t steps_done, Clock::time_point now = Clock::now());

  /// Shows a step. On a terminal the bar; elsewhere a line.
  void show(const StepMetrics& metrics);

  /// Draws the line anew where something is under way on a terminal. Called once a second.
  void tick(Clock::time_point now);

  /// Leaves the bar's last state as an ordinary line, so that other output may follow. Nothing is drawn from
  /// now on until begin() or show().
  void finish_line();

 private:
  /// A part of the line that is shown as a whole or not at all.
  struct Field {
    int rank;  ///< those with larger ones are left out first
    std::string text;
  };

  std::vector<Field> fields(double left_seconds) const;
  /// The line of a terminal after `steps_done` steps; `under_way` says since when what, or is empty.
  std::string bar(int64_t steps_done, const std::string& under_way, double left_seconds) const;
  double seconds_left(int64_t steps_done) const;
  void tick_until_the_end();

  ProgressOutput output_;
  std::mutex mutex_;  ///< of all that follows
  int64_t total_steps_;
  std::optional<StepMetrics> last_;  ///< that were shown
  std::string shown_;                ///< on a terminal, and not yet left as an ordinary line
  bool ticked_ = false;              ///< what is on the terminal is a tick's
  std::string under_way_;            ///< empty: nothing
  int64_t steps_done_ = 0;
  Clock::time_point begun_;
  bool ends_ = false;
  std::condition_variable end_;
  std::thread ticker_;
};

}  // namespace fsdp::train
