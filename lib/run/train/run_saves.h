#pragma once

#include "run/train/checkpointer.h"
#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Saves between steps at the intervals of checkpoint, and when a validation is the best.
class RunSaves final : public StepObserver {
 public:
  RunSaves(RunState& run, Checkpointer& checkpointer, RunMetrics& metrics)
      : run_(run), checkpointer_(checkpointer), metrics_(metrics) {}

  /// Saves if it is due, or the best state is to be kept. Collective.
  void save_if(bool due, bool best) {
    best = best && run_.config.checkpoint.keep_best;
    due = due || checkpointer_.wants_save();
    if (!due && !best) return checkpointer_.poll();
    run_.position.training_seconds = run_.training_seconds();
    metrics_.flush();
    run_.faults.at(FaultPlace::kSave, run_.position.step);
    run_.progress.begin("saving", run_.position.step);
    const MeasuredPause pause(run_.time_left, Pause::kSave, due);
    best ? checkpointer_.save_best(run_.position) : checkpointer_.save(run_.position);
  }

  /// A rank that was replaced repeats the save of the step at which the run continues.
  void begin(ObservedStep& last) override {
    const int64_t step = run_.position.step;
    const bool repeats = run_.continues() && step > 0 && run_.is_due(run_.config.checkpoint.interval_steps) &&
                         checkpointer_.saved_step() != step;
    save_if(repeats, last.is_best);
  }

  void between_steps(ObservedStep& step) override {
    save_if(run_.is_due(run_.config.checkpoint.interval_steps), step.is_best);
  }

 private:
  RunState& run_;
  Checkpointer& checkpointer_;
  RunMetrics& metrics_;
};

}  // namespace fsdp::train
