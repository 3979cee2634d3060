#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/loading/loader.h"
#include "data/tokenizers/tokenizer.h"
#include "run/train/evaluate.h"
#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Validates between steps at the intervals of evaluation, and after the last step.
class RunValidation final : public StepObserver {
 public:
  explicit RunValidation(RunState& run) : run_(run), history_(run.config.evaluation) {}

  /// Opens data.validation, which must name files. Throws as open_validation_data(), and Error(kUsage) for an
  /// evaluation.best_metric that cannot be computed.
  void open();
  /// The metrics to which validations are written. Requires: called before the first validation.
  void set_metrics(RunMetrics* metrics) { metrics_ = metrics; }
  /// Null without validation data.
  const data::ValidationLoader* loader() const { return loader_ ? &*loader_ : nullptr; }
  ValidationHistory& history() { return history_; }
  /// The line of metrics of the newest validation; null: unknown.
  nlohmann::ordered_json& line() { return line_; }
  /// Whether this step is to be validated, and was not yet.
  bool is_due() const;

  /// A run that stopped during a validation repeats it after resuming. A rank that was replaced also repeats
  /// its save and the update of the best checkpoint, so the step may be known as the best.
  void begin(ObservedStep& last) override;
  void between_steps(ObservedStep& step) override;

 private:
  /// Returns whether the validation is the best so far. One that is stopped leaves no trace and is due again
  /// on resume.
  bool validate();
  void report(const Validation& validation, bool best);

  RunState& run_;
  RunMetrics* metrics_ = nullptr;
  std::optional<data::ValidationLoader> loader_;
  std::unique_ptr<data::TokenBytes> token_bytes_;  ///< null: unknown
  ValidationHistory history_;
  nlohmann::ordered_json line_;
};

}  // namespace fsdp::train
