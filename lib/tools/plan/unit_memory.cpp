#include "tools/plan/unit_memory.h"

#include <utility>

#include "shard/units/nominal_pass.h"

namespace fsdp::plan {

using shard::UnitSizes;
using Sort = util::Arena::Sort;

util::Arena::Allocation PoolMemory::take(int64_t bytes, Sort sort) {
  if (places_.live() == 0 && places_.longer()) {
    tape_.give(places_.length());
    places_.grow();
    tape_.take(places_.length());
  }
  const util::Arena::Allocation place = places_.take(bytes, sort);
  if (place.is_outside) tape_.take(bytes);
  return place;
}

void PoolMemory::give_back(const util::Arena::Allocation& place) {
  if (place.is_outside) tape_.give(place.bytes);
  places_.give_back(place);
}

UnitMemory::UnitMemory(const config::Config& config, const Units& units, MemoryTape& tape,
                       const UnitMemoryOptions& options)
    : reduce_scatter_group_(config.fsdp.reduce_scatter_group),
      rounds_(config.training.gradient_accumulation_steps),
      sizes_(units),
      tape_(tape),
      options_(options),
      pool_(tape),
      common_(tape),
      schedule_(config::shard_options(config), shard::scheduled_units(units), *this,
                /*host_runs_ahead=*/options.on_device) {
  for (const UnitSizes& sizes : units) units_.push_back({.sizes = &sizes});
}

StageEvents UnitMemory::events(bool sync, bool is_last) {
  updates_ = is_last && !options_.update_temporaries.empty();
  schedule_.set_requires_gradient_sync(sync);
  schedule_.set_requires_all_reduce(is_last);
  return run_schedule(schedule_, sizes_, [this] { progress(); });
}

void UnitMemory::read(const shard::Command& command) {
  HeldUnit& unit = units_[command.unit];
  follow(unit, command);
  if (!unit.update.is_due_after(command, *unit.sizes, updates_)) return;
  tape_.touch(options_.update_temporaries[command.unit]);
  if (std::exchange(unit.has_shard_gradient, false)) tape_.give(counted_gradient_bytes(unit));
}

void UnitMemory::follow(HeldUnit& unit, const shard::Command& command) {
  using Action = shard::Command::Action;
  switch (command.kind) {
    case Action::kGatherSlices:  // into memory that is always there
    case Action::kWaitForSlices:
      return;
    case Action::kGather:
      return gather(unit);
    case Action::kWaitForGather:
      return wait(unit.gathered);
    case Action::kReshard:
      return reshard(unit);
    case Action::kAttachGradients:
      return attach_gradients(unit);
    case Action::kReduce:
    case Action::kReduceInSlice:
      return reduce(unit);
    case Action::kWaitForSending:
      return wait(unit.sent);
    case Action::kWaitForMove:
    case Action::kWaitForReduction:
      return wait(unit.reduced);
    case Action::kHandOver:
      if (updates_ && UnitUpdate::is_reduced_at_once(*unit.sizes)) wait(unit.reduced);
      return;
  }
}

int64_t UnitMemory::counted_gradient_bytes(const HeldUnit& unit) const {
  if (unit.sizes->options.storage.move_grads_to_cpu && !options_.count_moved) return 0;
  return unit.sizes->shard_gradient_bytes();
}

void UnitMemory::zero_gradients() {
  for (HeldUnit& unit : units_) {
    const bool has_gradient = std::exchange(unit.has_shard_gradient, false);
    if (has_gradient && unit.shard_gradient.use_count() == 0) tape_.give(counted_gradient_bytes(unit));
    unit.shard_gradient.reset();
    unit.round = 0;
  }
  schedule_.forget_gradients();
}

// ---- one unit, as in shard/engine/unit.cpp

void UnitMemory::gather(HeldUnit& unit) {
  const int64_t parameters = unit.sizes->unsharded_bytes();
  if (parameters == 0) return;
  const int64_t communication = unit.sizes->communication_bytes();
  const auto take = [this, &unit, parameters, communication] {
    if (communication > 0) unit.communication = gather_memory(unit).take(communication, Sort::kFirst);
    unit.parameters = (communication > 0 ? pool_ : gather_memory(unit)).take(parameters, Sort::kFirst);
  };
  const auto give_back = [this, &unit] {
    if (auto gathered = std::exchange(unit.communication, std::nullopt))
      gather_memory(unit).give_back(*gathered);
  };
  if (options_.on_device) {
    take();
    unit.gathered = issue(shard::kNoQueue, give_back);
    return;
  }
  if (!unit.sizes->is_cut()) {  // nothing to wait for
    take();
    return give_back();
  }
  unit.gathered = issue(gather_queue(unit.sizes->groups), [take, give_back] {
    take();
    give_back();
  });
}

/// The pool for the output of the unit's all-gather.
PoolMemory& UnitMemory::gather_memory(const HeldUnit& unit) {
  return options_.common && unit.sizes->is_cut() ? common_ : pool_;
}

void UnitMemory::reshard(HeldUnit& unit) {
  if (auto parameters = std::exchange(unit.parameters, std::nullopt)) {
    (unit.sizes->communication_bytes() == 0 ? gather_memory(unit) : pool_).give_back(*parameters);
  }
}

void UnitMemory::attach_gradients(HeldUnit& unit) {
  if (unit.sizes->has_parts()) {
    unit.gradients = pool_.take(unit.sizes->gradient_bytes(), Sort::kSecond);
  } else {
    tape_.take(unit.sizes->gradient_bytes());  // becomes the shard's gradient, so it is not the pool's
  }
}

void UnitMemory::reduce(HeldUnit& unit) {
  if (unit.sizes->options.storage.sums_by_sample) return reduce_by_sample(unit);
  const size_t queue = reduction_queue(unit.sizes->groups, reduce_scatter_group_);
  if (!unit.sizes->has_parts()) {
    unit.sent = unit.reduced = issue(queue, [this, &unit] { add_to_shard_gradient(unit); });
    return;
  }
  const bool twice = unit.sizes->is_cut() && unit.sizes->has_slices();
  const int64_t of_slice = twice ? unit.sizes->reduce_payload_bytes() : 0;
  tape_.take(of_slice + unit.sizes->result_bytes());
  unit.sent = issue(queue, [this, &unit] { pool_.give_back(*std::exchange(unit.gradients, std::nullopt)); });
  unit.reduced = issue(twice ? shard::kQueueAcross : queue, [this, &unit, of_slice] {
    tape_.give(of_slice);
    add_to_shard_gradient(unit);
  });
}

/// The result of the reduction becomes the shard's gradient or is added to it.
void UnitMemory::add_to_shard_gradient(HeldUnit& unit) {
  const int64_t result = unit.sizes->result_bytes();
  const int64_t gradient = unit.sizes->shard_gradient_bytes();
  const bool same = result == gradient;
  if (std::exchange(unit.has_shard_gradient, true)) {
    if (!same) tape_.touch(gradient);
    tape_.give(result);
  } else if (!same || counted_gradient_bytes(unit) != gradient) {
    tape_.take(counted_gradient_bytes(unit));
    tape_.give(result);
  }
}

// ---- as in shard/engine/unit_samples.cpp

void UnitMemory::reduce_by_sample(HeldUnit& unit) {
  const UnitSizes& sizes = *unit.sizes;
  const int64_t whole = sizes.gradient_bytes(), slots = sizes.slots_of_shards();
  const shard::SampleRound round =
      shard::sample_round({.ranks = sizes.groups.shards, .replicas = sizes.groups.replicas}, unit.round++);
  const auto gives = [this](int64_t bytes) {
    return HeldBytes(nullptr, [this, bytes](void*) { tape_.give(bytes); });
  };
  const auto takes = [this, gives](int64_t bytes) {
    tape_.take(bytes);
    return gives(bytes);
  };
  HeldBytes gradients;
  if (auto place = std::exchange(unit.gradients, std::nullopt)) {
    gradients = HeldBytes(nullptr, [this, place = *place](void*) { pool_.give_back(place); });
  } else {
    gradients = gives(whole);
  }
  const HeldBytes of_ties = sizes.most_uses > 1 ? takes((sizes.most_uses - 1) * whole) : nullptr;
  HeldBytes input = slots > 1 ? takes(slots * whole) : std::exchange(gradients, nullptr);
  HeldBytes of_shards = sizes.is_cut() ? takes(slots * sizes.result_bytes()) : input, result = of_shards,
            part;
  if (sizes.groups.replicas > 1) {
    result = takes(sizes.slot_payload_bytes() * sizes.groups.replicas);
    part = takes(sizes.slot_payload_bytes());
  }
  const size_t queue = reduction_queue(sizes.groups, reduce_scatter_group_);
  unit.sent = issue(queue, [input = std::move(input)]() mutable { input.reset(); });
  unit.reduced = issue(queue, [this, &unit, round, of_shards = std::move(of_shards), part = std::move(part),
                               result = std::move(result)]() mutable {
    of_shards.reset();
    part.reset();
    add_nodes(unit, round, std::exchange(result, nullptr));
  });
}

void UnitMemory::add_nodes(HeldUnit& unit, const shard::SampleRound& round, const HeldBytes& slots) {
  for (const shard::SampleNode& node : round.all) {
    unit.sums.push_back({node.level, slots});
    while (unit.sums.size() > 1 && unit.sums[unit.sums.size() - 2].level == unit.sums.back().level) {
      unit.sums.pop_back();
      ++unit.sums.back().level;
    }
  }
  if (unit.round < rounds_) return;
  unit.shard_gradient = unit.sums.front().memory;
  unit.has_shard_gradient = true;
  unit.sums.clear();
}

UnitMemory::QueuedTask UnitMemory::issue(size_t queue, std::function<void()> task) {
  Queue& in = queues_[queue];
  in.tasks.push_back(std::move(task));
  const QueuedTask queued{queue, in.done + in.tasks.size()};
  if (options_.timing == CollectiveTiming::kAtOnce) wait(queued);
  return queued;
}

void UnitMemory::progress() {
  if (options_.timing != CollectiveTiming::kBesideCompute) return;
  for (auto& [number, queue] : queues_) wait({number, queue.done + queue.tasks.size()});
}

void UnitMemory::wait(const QueuedTask& task) {
  for (Queue& in = queues_[task.queue]; in.done < task.number; ++in.done) {
    in.tasks.front()();
    in.tasks.pop_front();
  }
}

}  // namespace fsdp::plan
