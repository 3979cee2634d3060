#include "plan/step_clock.h"

#include <algorithm>

namespace fsdp::plan {

using shard::UnitSizes;

StepClock::StepClock(const std::vector<UnitSizes>& units, const MachineSpeed& speed)
    : units_(units), speed_(speed), ends_(units.size()) {}

void StepClock::read(const shard::Command& command) {
  using Kind = shard::Command::Kind;
  switch (command.kind) {
    case Kind::kGather:
      return gather(command.unit);
    case Kind::kWaitForGather:
      return wait_until(ends_[command.unit].gather);
    case Kind::kReduce:
      return reduce(command.unit);
    case Kind::kWaitForSending:
      return wait_until(ends_[command.unit].sending);
    case Kind::kWaitForMove:
    case Kind::kWaitForReduction:
      return wait_until(ends_[command.unit].reduction);
    case Kind::kReshard:
    case Kind::kAttachGradients:
    case Kind::kHandOver:
      return;
  }
}

void StepClock::compute(double seconds) {
  computed_ += seconds;
  now_ += seconds;
}

void StepClock::wait_until(double time) {
  if (time <= now_) return;
  exposed_ += time - now_;
  now_ = time;
}

double StepClock::put_on(double& stream, double seconds) {
  seconds += speed_.latency_seconds;
  stream = std::max(stream, now_) + seconds;
  communicated_ += seconds;
  return stream;
}

double StepClock::seconds_of_shards(const UnitSizes& unit, int64_t payload) const {
  const double each = static_cast<double>(payload), shards = unit.groups.shards;
  if (speed_.ranks_of_node == 0) return each * (shards - 1) / speed_.bytes_per_second;
  const double of_node = static_cast<double>(speed_.ranks_of_node);
  const double inside =
      speed_.node_bytes_per_second > 0 ? speed_.node_bytes_per_second : speed_.bytes_per_second;
  const double between = each * std::max(shards - of_node, 0.0) / (of_node * speed_.bytes_per_second);
  return std::max(each * (shards - 1) / inside, between);
}

void StepClock::gather(size_t index) {
  const UnitSizes& unit = units_[index];
  ends_[index].gather =
      unit.is_cut() ? put_on(communication_, seconds_of_shards(unit, unit.gather_payload_bytes())) : now_;
}

void StepClock::reduce(size_t index) {
  const UnitSizes& unit = units_[index];
  Ends& ends = ends_[index];
  ends.sending = ends.reduction = now_;
  if (unit.is_cut()) {
    ends.sending = ends.reduction =
        put_on(communication_, seconds_of_shards(unit, unit.reduce_payload_bytes()));
  }
  const double replicas = unit.groups.replicas;
  if (replicas < 2) return;
  const double bytes = static_cast<double>(unit.reduce_payload_bytes()) * 2 * (replicas - 1) / replicas;
  double& stream = unit.is_cut() ? replicas_ : communication_;
  stream = std::max(stream, ends.sending);
  ends.reduction = put_on(stream, bytes / speed_.replica_bytes_per_second);
  if (!unit.is_cut()) ends.sending = ends.reduction;
}

}  // namespace fsdp::plan
