#pragma once

#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"
#include "run/train/task_scores.h"

namespace fsdp::train {

/// Answers the tasks when a run validates: at the intervals of evaluation, and after the last step. A run
/// that stops meanwhile leaves them out.
class RunTasks final : public StepObserver {
 public:
  RunTasks(RunState& run, RunMetrics& metrics, const TaskScores& scores)
      : run_(run), metrics_(metrics), scores_(scores) {}
  void between_steps(ObservedStep& step) override;

 private:
  RunState& run_;
  RunMetrics& metrics_;
  const TaskScores& scores_;
};

}  // namespace fsdp::train
