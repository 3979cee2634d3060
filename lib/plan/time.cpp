#include "plan/time.h"

#include <algorithm>
#include <limits>
#include <map>

#include "shard/nominal_pass.h"

namespace fsdp::plan {

using shard::UnitSizes;

namespace {

constexpr size_t kShardLink = 0, kReplicaLink = 1;
/// Streams: between replicas, and of layers; no queue of shards has these numbers.
constexpr size_t kReplicas = 0, kLayers = 1;

}  // namespace

StepClock::StepClock(const std::vector<UnitSizes>& units, const MachineSpeed& speed,
                     bool reduce_scatter_group)
    : units_(units), speed_(speed), reduce_scatter_group_(reduce_scatter_group), jobs_(units.size()) {}

void StepClock::read(const shard::Command& command) {
  using Kind = shard::Command::Kind;
  switch (command.kind) {
    case Kind::kGatherSlices:
      return gather_slices(command.unit);
    case Kind::kWaitForSlices:
      return wait_for(jobs_[command.unit].slices);
    case Kind::kGather:
      return gather(command.unit);
    case Kind::kWaitForGather:
      return wait_for(jobs_[command.unit].gather);
    case Kind::kReduce:
      return reduce(command.unit);
    case Kind::kWaitForSending:
      return wait_for(jobs_[command.unit].sending);
    case Kind::kWaitForMove:
    case Kind::kWaitForReduction:
      return wait_for(jobs_[command.unit].reduction);
    case Kind::kReshard:
    case Kind::kAttachGradients:
    case Kind::kHandOver:
      return;
  }
}

void StepClock::compute(double seconds) {
  computed_ += seconds;
  while (seconds > 0) seconds -= streams_.pass(seconds);
}

void StepClock::wait_for(Job job) {
  while (!streams_.is_done(job)) exposed_ += streams_.pass(std::numeric_limits<double>::infinity());
}

StepClock::Job StepClock::put_on(size_t stream, size_t link, double seconds, Job after) {
  seconds += speed_.latency_seconds;
  communicated_ += seconds;
  return streams_.issue(stream, link, seconds, after);
}

StepClock::Job StepClock::send(int64_t bytes, int ranks) {
  const bool in_node = ranks <= speed_.ranks_of_node && speed_.node_bytes_per_second > 0;
  const double speed = in_node ? speed_.node_bytes_per_second : speed_.bytes_per_second;
  return put_on(kLayers, kShardLink, static_cast<double>(bytes) / speed);
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

double StepClock::seconds_between_slices(const UnitSizes& unit, int64_t payload) const {
  return static_cast<double>(payload * (unit.groups.slices - 1)) / speed_.replica_bytes_per_second;
}

void StepClock::gather_slices(size_t index) {
  const UnitSizes& unit = units_[index];
  jobs_[index].slices =
      put_on(kReplicas, kReplicaLink, seconds_between_slices(unit, unit.slice_gather_payload_bytes()));
}

void StepClock::gather(size_t index) {
  const UnitSizes& unit = units_[index];
  Jobs& jobs = jobs_[index];
  jobs.gather = unit.is_cut() ? put_on(gather_queue(unit.groups), kShardLink,
                                       seconds_of_shards(unit, unit.gather_payload_bytes()), jobs.slices)
                              : jobs.slices;
}

void StepClock::reduce(size_t index) {
  const UnitSizes& unit = units_[index];
  Jobs& jobs = jobs_[index];
  jobs.sending = jobs.reduction = 0;
  const size_t queue = reduction_queue(unit.groups, reduce_scatter_group_);
  if (unit.is_cut()) {
    jobs.sending = jobs.reduction =
        put_on(queue, kShardLink, seconds_of_shards(unit, unit.reduce_payload_bytes()));
  }
  const double replicas = unit.groups.replicas;
  if (replicas < 2 && !unit.has_slices()) return;
  const int64_t slots = unit.options.storage.sums_by_sample ? unit.slot_payload_bytes() * unit.groups.replicas
                                                            : unit.reduce_payload_bytes();
  const double bytes = static_cast<double>(slots) * 2 * (replicas - 1) / replicas;
  const double seconds = unit.has_slices() ? seconds_between_slices(unit, unit.result_bytes())
                                           : bytes / speed_.replica_bytes_per_second;
  if (unit.is_cut() || unit.has_slices()) {
    jobs.reduction = put_on(kReplicas, kReplicaLink, seconds, jobs.sending);
    if (!unit.is_cut()) jobs.sending = jobs.reduction;
  } else {
    jobs.sending = jobs.reduction = put_on(queue, kShardLink, seconds);
  }
}

TimePlan plan_time(const config::Config& config, const std::vector<UnitSizes>& units,
                   const MachineSpeed& speed, const RecordedPass& pass) {
  StepClock clock(units, speed, config.fsdp.reduce_scatter_group);
  shard::Schedule schedule(config::shard_options(config), shard::scheduled_units(units), clock,
                           /*host_runs_ahead=*/pass.on_device());
  double flops = 0, flops_in_float8 = 0;
  const auto micro_batch = [&](bool sync) {
    const TimePlan before{clock.computed(), clock.communicated(), clock.exposed(), flops, flops_in_float8};
    schedule.set_requires_gradient_sync(sync);
    StageEvents events = run_schedule(schedule, units);
    events.computes = [&](const Products& products) {
      flops += products.flops;
      flops_in_float8 += products.flops_in_float8;
      const double equivalent = products.flops - (1 - 1 / kFloat8Speed) * products.flops_in_float8;
      clock.compute(equivalent / speed.flops_per_second);
    };
    std::map<int64_t, StepClock::Job> jobs;
    events.sends = [&](int64_t number, int64_t bytes) {
      jobs[number] = clock.send(bytes, static_cast<int>(std::max<int64_t>(1, config.mesh.context) *
                                                        std::max<int64_t>(1, config.mesh.model)));
    };
    events.waits = [&](int64_t number) { clock.wait_for(jobs.at(number)); };
    MemoryTape tape;
    pass.play(tape, events);
    return TimePlan{clock.computed() - before.compute, clock.communicated() - before.communication,
                    clock.exposed() - before.exposed, flops - before.flops,
                    flops_in_float8 - before.flops_in_float8};
  };
  micro_batch(true);  // makes the order of the units known
  schedule.forget_gradients();
  // No collective is under way between micro-batches, so their times add up. The first gathers between slices.
  const int64_t count = config.training.gradient_accumulation_steps;
  TimePlan sum;
  const auto add = [&sum](const TimePlan& part, double times) {
    sum.compute += times * part.compute;
    sum.communication += times * part.communication;
    sum.exposed += times * part.exposed;
    sum.flops += times * part.flops;
    sum.flops_in_float8 += times * part.flops_in_float8;
  };
  if (count > 1) add(micro_batch(!config.training.no_sync), 1);
  if (count > 2) add(micro_batch(!config.training.no_sync), static_cast<double>(count - 2));
  add(micro_batch(true), 1);
  return sum;
}

}  // namespace fsdp::plan
