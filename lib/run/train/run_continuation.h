#pragma once

// RunContinuation: how a run whose ranks change (run/replicas) goes on from the memory of its ranks in place
// of a checkpoint, and leaves its state there, with what is done of the step or the exchange that was broken
// off.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "run/train/begun_step.h"
#include "run/train/checkpointer.h"
#include "run/train/run_state.h"
#include "run/train/run_validation.h"
#include "run/train/train_step.h"
#include "run/train/training_record.h"

namespace fsdp::train {

class RunContinuation {
 public:
  /// All must outlive the object. `state`: returns the run's state, without a record of its data.
  RunContinuation(RunState& run, Checkpointer& checkpointer, RunValidation& validation,
                  std::function<TrainingState()> state)
      : run_(run), checkpointer_(checkpointer), validation_(validation), state_(std::move(state)) {}

  /// Gives the run the state in RunHooks::membership, which must be set. Collective.
  void restore();
  /// Lets the step, which must outlive the object, go on with what restore() has found of it.
  void hand_to(TrainStep& step);
  /// Copies the state to RunHooks::membership. Not collective.
  void keep();

 private:
  nlohmann::json record() const;
  /// Adds what was done after the state that was kept.
  void keep_rest_of_step();
  RunMemory& memory() const { return *run_.hooks.membership->memory; }

  RunState& run_;
  Checkpointer& checkpointer_;
  RunValidation& validation_;
  std::function<TrainingState()> state_;
  TrainStep* step_ = nullptr;       ///< null before the first step
  std::optional<BegunStep> begun_;  ///< the part of the first step that is done, until the step has it
};

}  // namespace fsdp::train
