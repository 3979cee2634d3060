#include "run/train/replica_step.h"

#include <limits>
#include <utility>

#include "shard/engine/engine.h"

namespace fsdp::train {

StepResult ReplicaStep::run(StepPosition position) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  StepResult result{.loss = kUnknown, .loss_sum = kUnknown, .grad_norm = kUnknown};
  if (!standing_.failure.empty()) return result;
  if (schedule_.begins_any(position.step) || position.step == last_step_) position.reads_outcome = true;
  try {
    result = TrainStep::run(position);
    standing_.stop_requested = standing_.stop_requested || std::exchange(result.stop, false);
  } catch (const comm::AgreedError& error) {
    if (error.kind() != ErrorKind::kDiverged) throw;
    standing_.failure = result.skip_reason = error.what();
    result.skipped = true;
    return result;
  }
  if (leave_requested_) {
    result.leave = requested_on_any_rank(parts_.engine.communicator(), {leave_requested_()}).front();
  }
  return result;
}

}  // namespace fsdp::train
