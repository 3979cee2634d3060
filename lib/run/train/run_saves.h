#pragma once

#include <optional>

#include "run/train/checkpointer.h"
#include "run/train/fault_history.h"
#include "run/train/run_metrics.h"
#include "run/train/run_state.h"
#include "run/train/save_schedule.h"
#include "run/train/step_observer.h"

namespace fsdp::train {

/// Saves between steps by the schedule of checkpoint, and when a validation is the best. Rank 0 measures what
/// saves cost and, with the faults of the run so far, chooses the interval of checkpoint.schedule = "auto",
/// or advises another interval once.
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
  void finish() override;

 private:
  double seconds_of_start() const { return run_.training_seconds() - run_.seconds_before; }
  /// Uses the cost of the last save, whose copy the step after it has waited for. Called on rank 0.
  void use_cost();

  RunState& run_;
  Checkpointer& checkpointer_;
  RunMetrics& metrics_;
  SaveSchedule schedule_;
  std::optional<FaultHistory> history_;  ///< on rank 0
  int64_t saves_ = 0;                    ///< saves of this start
  double save_seconds_ = 0;              ///< time of these saves between steps
  bool has_new_cost_ = false, has_spoken_ = false;
};

}  // namespace fsdp::train
