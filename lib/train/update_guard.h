#pragma once

// Which steps are not to be followed by an update: those whose loss or gradient norm is not finite, and those
// where one of the two lies far above what it was in the steps before (a spike). A run whose steps are
// skipped one after another stops.
//
// Arithmetic on numbers that every rank has alike, not collective: so all ranks decide alike, and, since the
// state is saved, so does a run that resumes. Not thread-safe.

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"

namespace fsdp::train {

class UpdateGuard {
 public:
  /// Of [training]: skip_nonfinite, skip_zscore, skip_window and max_skipped_steps.
  explicit UpdateGuard(const config::TrainingOptions& options);

  /// Whether the options ask for one at all.
  static bool is_wanted(const config::TrainingOptions& options);

  /// Whether a step whose loss or norm is not finite is skipped, in place of ending the run.
  bool skips_nonfinite() const { return skip_nonfinite_; }

  /// Why a step with these finite numbers is to be skipped: "its loss 9.2 lies 7.3 standard deviations above
  /// the mean 3.1 of 128 steps". Empty: it is not. That is so until as many steps as the window has were
  /// updated, and for numbers below the mean.
  std::string outlier(double loss, double grad_norm) const;

  /// After a step that was updated.
  void accept(double loss, double grad_norm);
  /// After one that was skipped. False: more than max_skipped_steps were skipped in a row.
  [[nodiscard]] bool skip();

  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  int64_t skipped() const { return skipped_; }  ///< of the whole run
  int64_t max_skipped_steps() const { return max_skipped_steps_; }

  nlohmann::json state() const;
  /// Goes on as the guard that the state is of, if its options are the same. Throws nlohmann's exceptions for
  /// what is no state.
  void set_state(const nlohmann::json& state);

 private:
  bool skip_nonfinite_;
  double zscore_;  ///< 0: spikes are not looked for
  size_t window_;
  int64_t max_skipped_steps_;
  std::deque<double> losses_, grad_norms_;  ///< of the last steps that were updated; at most window_
  int64_t skipped_in_a_row_ = 0, skipped_ = 0;
};

}  // namespace fsdp::train
