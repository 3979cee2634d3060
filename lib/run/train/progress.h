#pragma once

// Progress: shows the progress of a run on stderr, on a terminal as one line that is redrawn, elsewhere as
// plain lines.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/util/progress_bar.h"
#include "run/train/metrics.h"

namespace fsdp::train {

using util::progress_on_stderr;
using util::ProgressOutput;

/// On a terminal, a thread redraws the line once a second while something is under way, so that a slow step
/// looks different from a run that hangs. The methods may be called from any thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress(ProgressOutput output, int64_t total_steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total_steps(int64_t total_steps);

  /// Shows that `what` ("step 7", "validation") is under way, until the next begin() or finish_line().
  /// `steps_done`: number of steps that are done.
  void begin(std::string what, int64_t steps_done, Clock::time_point now = Clock::now());

  /// Shows a step that is done, as the bar or as a line.
  void show(const StepMetrics& metrics, Clock::time_point now = Clock::now());

  /// Shows how far the run is while no step was shown yet: on a terminal in the bar, elsewhere by one line
  /// after the first step, which took so many seconds. `next_line`: the step that will be shown first.
  void show_unlogged(int64_t step, double step_seconds, double seconds_left, int64_t next_line,
                     Clock::time_point now = Clock::now());

  /// Redraws the line if something is under way on a terminal. Called once a second.
  void tick(Clock::time_point now);

  /// Ends the line with the bar's last state, so that other output may follow. Draws nothing until the next
  /// begin() or show().
  void finish_line();

 private:
  /// A part of the line that is shown as a whole or not at all.
  struct Field {
    int rank;  ///< fields with larger ranks are left out first
    std::string text;
  };

  std::vector<Field> fields(Clock::time_point now) const;
  /// Returns the terminal's line after `steps_done` steps. `under_way`: "validation for 12s", or empty.
  std::string bar(int64_t steps_done, const std::string& under_way, Clock::time_point now) const;

  ProgressOutput output_;
  std::mutex mutex_;  ///< guards all members below
  int64_t total_steps_;
  std::optional<StepMetrics> last_;           ///< the step that was shown last
  std::optional<Clock::time_point> ends_at_;  ///< when the run will probably end; nullopt: unknown
  std::string shown_;                         ///< the bar on a terminal, until finish_line()
  bool ticked_ = false;                       ///< the terminal shows a bar of tick()
  std::string under_way_;                     ///< the activity that is under way; empty: none
  int64_t steps_done_ = 0;
  Clock::time_point begun_;
  bool ends_ = false;
  std::condition_variable end_;
  std::thread ticker_;
};

}  // namespace fsdp::train
