#pragma once

// Which validation of a run was the best, and whether later ones still get better.
//
// Arithmetic on numbers that every rank has alike, not collective: so all ranks decide alike, and, since the
// state is saved, so does a run that resumes. Not thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "config/config.h"

namespace fsdp::train {

class ValidationHistory {
 public:
  /// Of [evaluation]: patience and min_delta.
  explicit ValidationHistory(const config::EvaluationOptions& options)
      : patience_(options.patience), min_delta_(options.min_delta) {}

  struct Best {
    int64_t step = 0;
    double loss = 0;
  };

  /// Whether it is the best so far: the first, or lower than that by more than min_delta. A loss that is not
  /// finite never is.
  bool add(int64_t step, double loss);

  const std::optional<Best>& best() const { return best_; }
  /// The step of the newest validation; 0 before the first.
  int64_t validated_at() const { return validated_at_; }

  /// Whether so many validations in a row were not better that the run is to end.
  bool patience_is_over() const { return patience_ > 0 && not_better_in_a_row_ >= patience_; }
  int64_t not_better_in_a_row() const { return not_better_in_a_row_; }

  nlohmann::json state() const;
  /// Throws nlohmann's exceptions for what is no state.
  void set_state(const nlohmann::json& state);

 private:
  int64_t patience_;
  double min_delta_;
  std::optional<Best> best_;
  int64_t validated_at_ = 0;
  int64_t not_better_in_a_row_ = 0;
};

}  // namespace fsdp::train
