#include "plan/unit_memory.h"

#include <utility>

#include "shard/nominal_pass.h"

namespace fsdp::plan {

using shard::UnitSizes;
using Sort = util::Arena::Sort;

int64_t shard_gradient_bytes(const config::Config& config, const UnitSizes& unit) {
  if (!unit.has_trainable_parameters) return 0;
  return unit.shard_numel * (config.mixed_precision.keep_low_precision_grads ? unit.reduce_element() : 4);
}

PoolMemory::Place PoolMemory::take(int64_t bytes, Sort sort) {
  if (places_.live() == 0 && places_.longer()) {
    tape_.give(places_.length());
    places_.grow();
    tape_.take(places_.length());
  }
  const Place place = places_.take(bytes, sort);
  if (place.is_outside) tape_.take(bytes);
  return place;
}

void PoolMemory::give_back(const Place& place) {
  if (place.is_outside) tape_.give(place.bytes);
  places_.give_back(place);
}

UnitMemory::UnitMemory(const config::Config& config, const std::vector<UnitSizes>& units, MemoryTape& tape,
                       const Options& options)
    : config_(config),
      sizes_(units),
      tape_(tape),
      options_(options),
      pool_(tape),
      common_(tape),
      schedule_(config::shard_options(config), shard::scheduled_units(units), *this) {
  for (const UnitSizes& sizes : units) units_.push_back({.sizes = &sizes});
}

StageEvents UnitMemory::events(bool sync) {
  schedule_.set_requires_gradient_sync(sync);
  return run_schedule(schedule_, sizes_, [this] { progress(); });
}

void UnitMemory::read(const shard::Command& command) {
  using Kind = shard::Command::Kind;
  Unit& unit = units_[command.unit];
  switch (command.kind) {
    case Kind::kGather:
      return gather(unit);
    case Kind::kWaitForGather:
      return wait(unit.gathered);
    case Kind::kReshard:
      return reshard(unit);
    case Kind::kAttachGradients:
      return attach_gradients(unit);
    case Kind::kReduce:
      return reduce(unit);
    case Kind::kWaitForSending:
      return wait(unit.sent);
    case Kind::kWaitForMove:
    case Kind::kWaitForReduction:
      return wait(unit.reduced);
    case Kind::kHandOver:
      return;
  }
}

int64_t UnitMemory::counted_gradient_bytes(const Unit& unit) const {
  if (config_.fsdp.move_grads_to_cpu && !options_.count_moved) return 0;
  return shard_gradient_bytes(config_, *unit.sizes);
}

void UnitMemory::zero_gradients() {
  for (Unit& unit : units_) {
    if (std::exchange(unit.has_shard_gradient, false)) tape_.give(counted_gradient_bytes(unit));
  }
}

// ---- one unit, as in shard/unit.cpp

void UnitMemory::gather(Unit& unit) {
  const int64_t parameters = unit.sizes->unsharded_bytes();
  if (parameters == 0) return;
  const int64_t communication = unit.sizes->communication_bytes();
  unit.gathered = issue([this, &unit, parameters, communication] {
    if (communication == 0) {
      unit.parameters = gather_memory(unit).take(parameters, Sort::kFirst);
      return;
    }
    const PoolMemory::Place gathered = gather_memory(unit).take(communication, Sort::kFirst);
    unit.parameters = pool_.take(parameters, Sort::kFirst);
    gather_memory(unit).give_back(gathered);
  });
}

/// For the output of the unit's all-gather.
PoolMemory& UnitMemory::gather_memory(const Unit& unit) {
  return options_.common && unit.sizes->is_cut() ? common_ : pool_;
}

void UnitMemory::reshard(Unit& unit) {
  if (auto parameters = std::exchange(unit.parameters, std::nullopt)) {
    (unit.sizes->communication_bytes() == 0 ? gather_memory(unit) : pool_).give_back(*parameters);
  }
}

void UnitMemory::attach_gradients(Unit& unit) {
  if (unit.sizes->is_cut()) {
    unit.gradients = pool_.take(unit.sizes->gradient_bytes(), Sort::kSecond);
  } else {
    tape_.take(unit.sizes->gradient_bytes());  // becomes the shard's gradient, so it is not the pool's
  }
}

void UnitMemory::reduce(Unit& unit) {
  if (!unit.sizes->is_cut()) {
    unit.sent = unit.reduced = issue([this, &unit] { add_to_shard_gradient(unit); });
    return;
  }
  tape_.take(unit.sizes->reduce_payload_bytes());
  unit.sent = issue([this, &unit] { pool_.give_back(*std::exchange(unit.gradients, std::nullopt)); });
  unit.reduced = issue([this, &unit] { add_to_shard_gradient(unit); });
}

/// The result of the reduction becomes the shard's gradient or is added to it.
void UnitMemory::add_to_shard_gradient(Unit& unit) {
  const int64_t result = unit.sizes->reduce_payload_bytes();
  const int64_t gradient = shard_gradient_bytes(config_, *unit.sizes);
  const bool same = result == gradient;
  if (std::exchange(unit.has_shard_gradient, true)) {
    if (!same) tape_.touch(gradient);
    tape_.give(result);
  } else if (!same || (config_.fsdp.move_grads_to_cpu && !options_.count_moved)) {
    tape_.take(counted_gradient_bytes(unit));
    tape_.give(result);
  }
}

size_t UnitMemory::issue(std::function<void()> task) {
  queue_.push_back(std::move(task));
  ++issued_;
  if (options_.timing == CollectiveTiming::kAtOnce) wait(issued_);
  return issued_;
}

void UnitMemory::progress() {
  if (options_.timing == CollectiveTiming::kBesideCompute) wait(issued_);
}

void UnitMemory::wait(size_t place) {
  while (done_ < place) {
    queue_.front()();
    queue_.pop_front();
    ++done_;
  }
}

}  // namespace fsdp::plan
