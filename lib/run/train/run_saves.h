#pragma once

#include "run/train/checkpointer.h"
#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/save_schedule.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Saves between steps by the schedule of checkpoint, and when a validation is the best.
class RunSaves final : public StepObserver {
 public:
  RunSaves(RunState& run, Checkpointer& checkpointer, RunMetrics& metrics)
      : run_(run),
        checkpointer_(checkpointer),
        metrics_(metrics),
        schedule_(run.config.checkpoint, *run.communicator) {}

  const SaveSchedule& schedule() const { return schedule_; }

  /// Saves if it is due, or the best state is to be kept. Collective.
  void save_if(bool due, bool best);

  /// A rank that was replaced repeats the save of the step at which the run continues.
  void begin(ObservedStep& last) override;
  void between_steps(ObservedStep& step) override;

 private:
  RunState& run_;
  Checkpointer& checkpointer_;
  RunMetrics& metrics_;
  SaveSchedule schedule_;
};

}  // namespace fsdp::train
