#include "shard/units/step_formula.h"

#include <algorithm>
#include <deque>
#include <map>

#include "base/util/error.h"
#include "shard/units/nominal_pass.h"
#include "shard/units/unit_collectives.h"

namespace fsdp::shard {
namespace {

/// The largest number of bytes held at once. Tasks of a queue run in order, each at any time between its
/// issue and the wait for it. Tasks of different queues run in any order.
class MostBytes {
 public:
  struct QueuePlace {
    size_t queue = 0, number = 0;
  };

  /// Adds bytes that the caller takes or, if negative, frees.
  void add(int64_t bytes) {
    live_ += bytes;
    note();
  }
  /// Adds bytes that a task takes or frees. Returns the task's place, for wait().
  QueuePlace issue(size_t queue, int64_t bytes) {
    TaskQueue& in = queues_[queue];
    in.under_way.push_back(bytes);
    note();
    return {queue, in.done + in.under_way.size()};
  }
  void wait(const QueuePlace& place) {
    for (TaskQueue& in = queues_[place.queue]; in.done < place.number; ++in.done) {
      live_ += in.under_way.front();
      in.under_way.pop_front();
    }
  }

  int64_t most() const { return most_; }
  void reset() { most_ = 0; }

 private:
  struct TaskQueue {
    std::deque<int64_t> under_way;
    size_t done = 0;
  };

  void note() {
    int64_t most = live_;
    for (const auto& [number, queue] : queues_) {
      int64_t sum = 0, largest = 0;
      for (int64_t bytes : queue.under_way) largest = std::max(largest, sum += bytes);
      most += largest;
    }
    most_ = std::max(most_, most);
  }

  int64_t live_ = 0, most_ = 0;
  std::map<size_t, TaskQueue> queues_;
};

class Counter final : public CommandReader {
 public:
  Counter(const std::vector<UnitSizes>& units, const ShardOptions& options, bool on_device)
      : units_(units),
        on_device_(on_device),
        reduce_scatter_group_(options.reduce_scatter_group),
        gathered_(units.size()),
        sent_(units.size()) {}

  void read(const Command& command) override {
    const UnitSizes& unit = units_[command.unit];
    count(command);
    switch (command.kind) {
      case Command::Action::kGatherSlices:
      case Command::Action::kWaitForSlices:
        return;
      case Command::Action::kGather:
        return gather(command);
      case Command::Action::kWaitForGather:
        return bytes_.wait(gathered_[command.unit]);
      case Command::Action::kReshard:
        return bytes_.add(-unit.unsharded_bytes());
      case Command::Action::kAttachGradients:
        return unit.has_parts() ? bytes_.add(unit.gradient_bytes()) : void();
      case Command::Action::kReduce:
      case Command::Action::kReduceInSlice:
        return reduce(command);
      case Command::Action::kWaitForSending:
      case Command::Action::kWaitForReduction:
        return bytes_.wait(sent_[command.unit]);
      case Command::Action::kWaitForMove:
      case Command::Action::kHandOver:
        return;
    }
  }

  void begin_counting(int64_t times) { times_ = times; }
  void begin_step() {
    bytes_.reset();
    formula_ = {};
  }
  StepFormula formula() const {
    StepFormula formula = formula_;
    formula.traffic +=
        {.all_gathers = formula.forward_all_gathers + formula.backward_all_gathers,
         .all_gather_bytes = formula.forward_all_gather_bytes + formula.backward_all_gather_bytes};
    formula.traffic += formula.between_slices;
    formula.unsharded_bytes = bytes_.most();
    return formula;
  }

 private:
  void count(const Command& command) {
    const UnitSizes& unit = units_[command.unit];
    // The first micro-batch gathers for all.
    const bool is_for_all = command.kind == Command::Action::kGatherSlices ||
                            (command.kind == Command::Action::kGather && unit.stays_in_step());
    const bool forward = command.pass == Pass::kForward;
    for (const UnitCollective& each : collectives_of(command.kind, unit, reduce_scatter_group_)) {
      const Traffic traffic = each.traffic(is_for_all ? 1 : times_);
      if (each.among == UnitCollective::Among::kSlices) {
        formula_.between_slices += traffic;
      } else if (each.kind == UnitCollective::Operation::kAllGather) {
        (forward ? formula_.forward_all_gathers : formula_.backward_all_gathers) += traffic.all_gathers;
        (forward ? formula_.forward_all_gather_bytes : formula_.backward_all_gather_bytes) +=
            traffic.all_gather_bytes;
      } else {
        formula_.traffic += traffic;
      }
    }
  }

  void gather(const Command& command) {
    const UnitSizes& unit = units_[command.unit];
    const int64_t bytes = unit.unsharded_bytes() + unit.communication_bytes();
    // Without communication there is no collective to wait behind.
    if (!on_device_ && !unit.is_cut()) {
      bytes_.add(bytes);
      return bytes_.add(-unit.communication_bytes());
    }
    // On a device, to wait for a gather gives back nothing of the reductions before it.
    const size_t queue = on_device_ ? kNoQueue : gather_queue(unit.groups);
    if (on_device_) {
      bytes_.add(bytes);
    } else {
      bytes_.issue(queue, bytes);
    }
    gathered_[command.unit] = bytes_.issue(queue, -unit.communication_bytes());
  }

  void reduce(const Command& command) {
    const UnitSizes& unit = units_[command.unit];
    if (unit.has_parts() && unit.slots_of_shards() > 1) {
      bytes_.add(-unit.gradient_bytes());  // copied into slots at once
      sent_[command.unit] = {};
    } else if (unit.has_parts()) {
      sent_[command.unit] =
          bytes_.issue(reduction_queue(unit.groups, reduce_scatter_group_), -unit.gradient_bytes());
    }
  }

  const std::vector<UnitSizes>& units_;
  const bool on_device_, reduce_scatter_group_;
  std::vector<MostBytes::QueuePlace> gathered_, sent_;  ///< tasks, indexed by unit
  MostBytes bytes_;
  StepFormula formula_;
  int64_t times_ = 1;
};

}  // namespace

StepFormula step_formula(const std::vector<UnitSizes>& units, const ShardOptions& options,
                         const StepFormulaOptions& step) {
  FSDP_CHECK(step.micro_batches >= 1);
  Counter counter(units, options, step.on_device);
  Schedule schedule(options, scheduled_units(units), counter, /*host_runs_ahead=*/step.on_device);
  const NominalPass pass(units);
  pass.run(schedule);  // makes the order of the units known
  counter.begin_step();
  schedule.forget_gradients();
  if (step.micro_batches > 1) {
    counter.begin_counting(/*times=*/step.micro_batches - 1);
    schedule.set_requires_gradient_sync(!step.no_sync);
    schedule.set_requires_all_reduce(false);
    pass.run(schedule);
  }
  counter.begin_counting(/*times=*/1);
  schedule.set_requires_gradient_sync(true);
  schedule.set_requires_all_reduce(true);
  pass.run(schedule);

  StepFormula formula = counter.formula();
  int64_t parameters = 0, shard = 0, gradients = 0;
  for (const UnitSizes& unit : units) {
    parameters = std::max(parameters, unit.unsharded_numel * unit.param_element());
    shard = std::max(shard, unit.gather_payload_bytes());
    gradients = std::max(gradients, unit.gradient_bytes());
    formula.shard_bytes += unit.shard_bytes();
    formula.source_bytes += unit.source_bytes();
  }
  formula.separate_forward_bytes = 2 * (parameters + shard);
  formula.separate_buffers_bytes = formula.separate_forward_bytes + 2 * gradients;
  return formula;
}

}  // namespace fsdp::shard
