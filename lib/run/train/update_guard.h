#pragma once

// UpdateGuard: decides which steps skip their update. These are steps whose loss or gradient norm is not
// finite, and steps in which one of the two is far above its values in the preceding steps (a spike). A run
// that skips too many steps in a row stops.
//
// Not collective: all ranks compute with the same numbers and decide alike, and so does a run that resumes,
// because the state is saved. Not thread-safe.

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "setup/config/config.h"

namespace fsdp::train {

class UpdateGuard {
 public:
  /// Uses skip_nonfinite, skip_zscore, skip_window and max_skipped_steps of [training].
  explicit UpdateGuard(const config::TrainingOptions& options);

  /// Whether a step whose loss or norm is not finite is skipped rather than ends the run.
  bool skips_nonfinite() const { return skip_nonfinite_; }

  /// Returns the reason to skip a step with these finite numbers: "its loss 9.2 is 7.3 standard deviations
  /// above the mean 3.1 of 128 steps". Empty if the step is not skipped: before a whole window of steps was
  /// updated, and for numbers below the mean.
  std::string outlier(double loss, double grad_norm) const;

  /// Adds the numbers of a step with an update.
  void accept(double loss, double grad_norm);
  /// Counts a skipped step. False: more than max_skipped_steps were skipped in a row.
  [[nodiscard]] bool skip();

  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  int64_t skipped() const { return skipped_; }  ///< skipped steps of the whole run
  int64_t max_skipped_steps() const { return max_skipped_steps_; }

  nlohmann::json state() const;
  /// Restores the state() of a guard with the same options. Throws nlohmann's exceptions for JSON that
  /// state() did not return.
  void set_state(const nlohmann::json& state);

 private:
  bool skip_nonfinite_;
  double zscore_;  ///< 0: spikes are not detected
  size_t window_;
  int64_t max_skipped_steps_;
  std::deque<double> losses_, grad_norms_;  ///< values of the last steps with an update; at most window_
  int64_t skipped_in_a_row_ = 0, skipped_ = 0;
};

}  // namespace fsdp::train
