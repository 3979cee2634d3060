#include "tools/plan/time.h"

#include <algorithm>
#include <limits>
#include <map>

#include "shard/units/nominal_pass.h"
#include "state/groups/parameter_groups.h"
#include "tools/plan/memory.h"

namespace fsdp::plan {

using shard::UnitSizes;

namespace {

constexpr size_t kShardLink = 0, kReplicaLink = 1, kHostLink = 2;
/// Streams; no queue of units has these numbers.
constexpr size_t kLayers = shard::kNoQueue, kCopies = shard::kNoQueue - 1;

}  // namespace

StepClock::StepClock(const Units& units, const MachineSpeed& speed, bool reduce_scatter_group)
    : units_(units), speed_(speed), reduce_scatter_group_(reduce_scatter_group), jobs_(units.size()) {}

void StepClock::read(const shard::Command& command) {
  const UnitSizes& unit = units_[command.unit];
  const auto issue = [&](Job after) {
    return issue_in_order(collectives_of(command.kind, unit, reduce_scatter_group_), after,
                          [&](const shard::UnitCollective& each, Job behind) {
                            const size_t link = each.queue == shard::kQueueAcross ? kReplicaLink : kShardLink;
                            return put_on(each.queue, link, seconds_of(unit, each), behind);
                          });
  };
  jobs_[command.unit].follow(command, unit, issue, [this](Job job) { wait_for(job); });
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

StepClock::Job StepClock::copy(int64_t bytes) {
  const double seconds = static_cast<double>(bytes) / speed_.host_bytes_per_second;
  copied_ += seconds;
  return streams_.issue(kCopies, kHostLink, seconds);
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

double StepClock::seconds_of(const UnitSizes& unit, const shard::UnitCollective& collective) const {
  using Among = shard::UnitCollective::Among;
  if (collective.among == Among::kShards) return seconds_of_shards(unit, collective.bytes);
  const double ranks = collective.among == Among::kSlices ? unit.groups.slices : unit.groups.replicas;
  const bool is_whole = collective.kind == shard::UnitCollective::Operation::kAllReduce;
  const double received = static_cast<double>(collective.bytes) * (ranks - 1) * (is_whole ? 2 / ranks : 1);
  return received / speed_.replica_bytes_per_second;
}

UpdateTimes update_times(const config::Config& config, const Units& units, const MachineSpeed& speed) {
  if (!is_for_gpu(config)) return {};
  const bool streams = config.optimizer.offload == optim::OptimizerOffload::kStream;
  const optim::OptimizerTraits* traits = optim::optimizer_traits().find(config.optimizer.name);
  const bool can_stream =
      traits != nullptr && traits->keys && std::ranges::count(*traits->keys, "offload") > 0;
  double touched = 0, to_device = 0, to_host = 0;
  for (const UnitSizes& unit : units) {
    const shard::StorageOptions& storage = unit.options.storage;
    if (!unit.has_trainable_parameters || !(streams || storage.cpu_offload)) continue;
    const auto gradient = static_cast<double>(unit.shard_gradient_bytes());
    auto both = static_cast<double>(optimizer_state_bytes(config.optimizer, {unit}));
    if (storage.cpu_offload) both += static_cast<double>(unit.shard_bytes());
    if (storage.cpu_offload && storage.keeps_low_precision_shard)
      both += static_cast<double>(unit.source_bytes());
    touched += 2 * both + gradient;
    to_device += both + (storage.move_grads_to_cpu ? gradient : 0);
    to_host += both;
  }
  return {.by_host = touched / speed.host_memory_bytes_per_second,
          .by_device = can_stream ? std::max(to_device, to_host) / speed.host_bytes_per_second : 0};
}

TimePlan plan_time(const config::Config& config, const Units& units, const MachineSpeed& speed,
                   const RecordedPass& pass) {
  StepClock clock(units, speed, config.fsdp.reduce_scatter_group);
  shard::Schedule schedule(config::shard_options(config), shard::scheduled_units(units), clock,
                           /*host_runs_ahead=*/pass.on_device());
  double flops = 0, flops_in_float8 = 0;
  const auto micro_batch = [&](bool sync, bool is_last) {
    const TimePlan before{.compute = clock.computed(),
                          .communication = clock.communicated(),
                          .copies = clock.copied(),
                          .exposed = clock.exposed(),
                          .flops = flops,
                          .flops_in_float8 = flops_in_float8};
    schedule.set_requires_gradient_sync(sync);
    schedule.set_requires_all_reduce(is_last);
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
    events.copies = [&](int64_t number, int64_t bytes) { jobs[number] = clock.copy(bytes); };
    events.waits = [&](int64_t number) { clock.wait_for(jobs.at(number)); };
    MemoryTape tape;
    pass.play(tape, events);
    return TimePlan{.compute = clock.computed() - before.compute,
                    .communication = clock.communicated() - before.communication,
                    .copies = clock.copied() - before.copies,
                    .exposed = clock.exposed() - before.exposed,
                    .flops = flops - before.flops,
                    .flops_in_float8 = flops_in_float8 - before.flops_in_float8};
  };
  micro_batch(true, true);  // makes the order of the units known
  schedule.forget_gradients();
  TimePlan sum;
  for_micro_batches(config.training, [&](bool sync, bool is_last, double times) {
    const TimePlan part = micro_batch(sync, is_last);
    sum.compute += times * part.compute;
    sum.communication += times * part.communication;
    sum.copies += times * part.copies;
    sum.exposed += times * part.exposed;
    sum.flops += times * part.flops;
    sum.flops_in_float8 += times * part.flops_in_float8;
  });
  const UpdateTimes update = update_times(config, units, speed);
  sum.update =
      config.optimizer.offload == optim::OptimizerOffload::kStream ? update.by_device : update.by_host;
  return sum;
}

}  // namespace fsdp::plan
