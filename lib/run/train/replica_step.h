#pragma once

// The step of a run with local steps (training.local_steps). The engine has the ranks of one replica, which
// agree on everything as the ranks of other runs do. What all ranks of the run must agree on waits until
// replicas meet (local_steps.h): requests to stop, and the end of a replica that has diverged.

#include <functional>
#include <string>
#include <utility>

#include "run/train/train_step.h"
#include "state/groups/outer_schedule.h"

namespace fsdp::train {

/// A replica's message to the others for their next exchange; the same on all of its ranks.
struct ReplicaStanding {
  std::string failure{};        ///< why the replica takes no more steps; empty: it does
  bool stop_requested = false;  ///< whether any of its ranks was asked to stop
};

class ReplicaStep final : public TrainStep {
 public:
  /// `standing` must outlive the object. `leave_requested`: whether this rank's replica is to leave the run's
  /// other ranks after this step; called once a step. May be null.
  ReplicaStep(const StepParts& parts, const StepOptions& options, const optim::OuterSchedule& schedule,
              int64_t last_step, ReplicaStanding& standing, std::function<bool()> leave_requested = nullptr)
      : TrainStep(parts, options),
        schedule_(schedule),
        last_step_(last_step),
        standing_(standing),
        leave_requested_(std::move(leave_requested)) {}

  /// Does nothing once the replica has diverged.
  StepResult run(StepPosition position) override;

 private:
  optim::OuterSchedule schedule_;
  int64_t last_step_;
  ReplicaStanding& standing_;
  std::function<bool()> leave_requested_;
};

}  // namespace fsdp::train
