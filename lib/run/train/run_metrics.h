#pragma once

#include <memory>
#include <optional>

#include "run/train/metrics.h"
#include "run/train/rank_paces.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Reports steps: compares the ranks' paces, writes a line of metrics and shows the progress, at the
/// intervals of logging and at the end of the run.
class RunMetrics final : public StepObserver {
 public:
  /// `paces`: null where ranks are not compared. The batches are those of the run's steps.
  RunMetrics(RunState& run, const TimedBatches& batches, std::unique_ptr<RankPaces> paces)
      : run_(run), batches_(batches), paces_(std::move(paces)) {}

  /// Opens the file, on the first rank. `validates_again`: as in KeptMetrics.
  void open(bool validates_again);
  /// Writes the lines of the step at which the run continues, if the rank that was to write them was lost.
  void write_what_is_missing(const nlohmann::ordered_json& validation_line);
  void write_validation(const nlohmann::ordered_json& line);
  /// Waits until all lines are written: a run that resumes from a checkpoint keeps the metrics of its step,
  /// so the checkpoint must not be older than these. Collective.
  void flush();

  RankPaces* paces() const { return paces_.get(); }
  /// The newest line of a step, on the first rank; nullopt before this start has written one.
  const std::optional<StepMetrics>& last_line() const { return last_line_; }
  /// The newest numbers of validations and tasks, on the first rank; null before the first.
  const nlohmann::ordered_json& last_validation() const { return last_validation_; }

  void end_step(ObservedStep& step) override;

 private:
  void compare_ranks();
  void report(const ObservedStep& step, NamedNumbers of_objective);
  /// Shows how far the run is before the first line.
  void show_first_steps();

  RunState& run_;
  const TimedBatches& batches_;
  std::unique_ptr<RankPaces> paces_;
  std::optional<MetricsFile> file_;  ///< on the first rank
  NamedNumbers of_observers_;        ///< numbers of steps since the last line
  std::optional<StepMetrics> last_line_;
  nlohmann::ordered_json last_validation_;
};

}  // namespace fsdp::train
