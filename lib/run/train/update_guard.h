#pragma once

// Decides which steps skip their update: those whose loss or gradient norm is not finite, and those where one
// of the two is far above its values in the preceding steps (a spike). A run that skips too many steps in a
// row stops.
//
// Arithmetic on numbers that are the same on every rank, not collective: so all ranks decide alike, and,
// since the state is saved, so does a run that resumes. Not thread-safe.

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "setup/config/config.h"

namespace fsdp::train {

class UpdateGuard {
 public:
  /// Of [training]: skip_nonfinite, skip_zscore, skip_window and max_skipped_steps.
  explicit UpdateGuard(const config::TrainingOptions& options);

  /// Whether a step whose loss or norm is not finite is skipped rather than ends the run.
  bool skips_nonfinite() const { return skip_nonfinite_; }

  /// Why a step with these finite numbers is to be skipped: "its loss 9.2 is 7.3 standard deviations above
  /// the mean 3.1 of 128 steps". Empty: it is not skipped, as until a whole window of steps was updated, and
  /// for numbers below the mean.
  std::string outlier(double loss, double grad_norm) const;

  /// To be called after a step with an update.
  void accept(double loss, double grad_norm);
  /// To be called after a skipped step. False: more than max_skipped_steps were skipped in a row.
  [[nodiscard]] bool skip();

  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  int64_t skipped() const { return skipped_; }  ///< of the whole run
  int64_t max_skipped_steps() const { return max_skipped_steps_; }

  nlohmann::json state() const;
  /// Continues as the guard whose state() it is, if the options are the same. Throws nlohmann's exceptions
  /// for JSON that state() did not return.
  void set_state(const nlohmann::json& state);

 private:
  bool skip_nonfinite_;
  double zscore_;  ///< 0: spikes are not detected
  size_t window_;
  int64_t max_skipped_steps_;
  std::deque<double> losses_, grad_norms_;  ///< of the last steps with an update; at most window_
  int64_t skipped_in_a_row_ = 0, skipped_ = 0;
};

}  // namespace fsdp::train
