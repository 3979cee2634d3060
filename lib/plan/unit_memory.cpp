#include "plan/unit_memory.h"

#include <limits>
#include <utility>

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
      shard_options_(config::shard_options(config)),
      tape_(tape),
      options_(options),
      pool_(tape),
      common_(tape) {
  for (const UnitSizes& sizes : units) {
    if (sizes.is_root) {
      ++root_units_;
    } else {
      by_path_[sizes.name] = units_.size();
    }
    units_.push_back({.sizes = &sizes});
  }
}

StageEvents UnitMemory::events(bool sync) {
  sync_ = sync;
  auto of = [this](void (UnitMemory::*event)(size_t)) {
    return [this, event](const std::string& path) { at(path, [&](size_t unit) { (this->*event)(unit); }); };
  };
  return {.forward_begins = of(&UnitMemory::forward_begins),
          .forward_ends = of(&UnitMemory::forward_ends),
          .backward_begins = of(&UnitMemory::backward_begins),
          .backward_ends = of(&UnitMemory::backward_ends)};
}

template <typename Body>
void UnitMemory::at(const std::string& path, const Body& body) {
  if (path.empty()) return body(0);
  if (auto found = by_path_.find(path); found != by_path_.end()) body(found->second);
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

// ---- the pass, as shard/engine.cpp goes through it

void UnitMemory::forward_begins(size_t index) {
  Unit& unit = units_[index];
  if (in_backward_) return finish_gather(unit);  // run again
  if (index == 0) {
    for (Unit& each : units_) reshard(each);
    kept_ = nullptr;
    ahead_.clear();
    order_.begin_pass();
  }
  order_.begin(index);
  std::erase(ahead_, index);
  if (!order_.follows_last_pass()) release_gathered_ahead();
  release_kept_unit(&unit);
  finish_gather(unit);
  if (index == 0) {
    for (size_t i = 1; i < root_units_; ++i) finish_gather(units_[i]);
  }
  gather_ahead();
}

void UnitMemory::forward_ends(size_t index) {
  progress();
  if (in_backward_) return;
  Unit& unit = units_[index];
  order_.end(index);
  if (index == 0) {
    release_gathered_ahead();
    order_.end_pass();
    for (size_t i = 0; i < root_units_; ++i) {
      if (units_[i].sizes->reshard_after_forward) reshard(units_[i]);
    }
    return;
  }
  if (!unit.sizes->reshard_after_forward) return;
  release_kept_unit(&unit);
  if (shard_options_.reshard_last_after_forward) {
    reshard(unit);
  } else {
    kept_ = &unit;
  }
}

void UnitMemory::gather_ahead() {
  if (shard_options_.forward_prefetch == "none") return;
  size_t most = shard_options_.limit_all_gathers ? 1 : std::numeric_limits<size_t>::max();
  for (size_t next : order_.next(most)) {
    if (units_[next].in_use) continue;
    start_gather(units_[next]);
    ahead_.push_back(next);
  }
}

void UnitMemory::release_gathered_ahead() {
  for (size_t index : ahead_) reshard(units_[index]);
  ahead_.clear();
}

void UnitMemory::release_kept_unit(const Unit* except) {
  if (kept_ == nullptr || kept_ == except) return;
  reshard(*std::exchange(kept_, nullptr));
}

void UnitMemory::backward_begins(size_t index) {
  if (!std::exchange(in_backward_, true)) {
    order_.begin_backward_pass();
    kept_ = nullptr;
  }
  order_.begin_in_backward(index);
  const size_t end = index == 0 ? root_units_ : index + 1;
  for (size_t i = index; i < end; ++i) finish_gather(units_[i]);
  if (shard_options_.backward_prefetch == "pre") prefetch_backward(index);
  for (size_t i = index; i < end; ++i) attach_gradients(units_[i]);
}

void UnitMemory::prefetch_backward(size_t index) {
  if (auto next = order_.next_in_backward(index)) start_gather(units_[*next]);
}

void UnitMemory::backward_ends(size_t index) {
  if (index == 0) return whole_backward_ends();
  Unit& unit = units_[index];
  if (!unit.sizes->input_is_differentiable) return;  // nothing tells when it has ended
  progress();
  reshard(unit);
  if (sync_ && unit.has_gradients) reduce(unit);
  if (shard_options_.backward_prefetch == "post") prefetch_backward(index);
}

void UnitMemory::whole_backward_ends() {
  if (sync_) {
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      if (unit->has_gradients) reduce(*unit);
    }
    reducing_ = nullptr;
    wait(issued_);
  }
  for (Unit& unit : units_) reshard(unit);
  in_backward_ = false;
}

// ---- one unit, as shard/unit.cpp has it

void UnitMemory::start_gather(Unit& unit) {
  if (std::exchange(unit.in_use, true)) return;
  const int64_t parameters = unit.sizes->unsharded_bytes();
  if (parameters == 0) return;
  const int64_t communication = unit.sizes->communication_bytes();
  if (communication == 0) {
    unit.gathered = issue(
        [this, &unit, parameters] { unit.parameters = gather_memory(unit).take(parameters, Sort::kFirst); });
    return;
  }
  unit.gathered = issue([this, &unit, parameters, communication] {
    const PoolMemory::Place gathered = gather_memory(unit).take(communication, Sort::kFirst);
    unit.parameters = pool_.take(parameters, Sort::kFirst);
    gather_memory(unit).give_back(gathered);
  });
}

/// Of the output of its all-gather.
PoolMemory& UnitMemory::gather_memory(const Unit& unit) {
  return options_.common && unit.sizes->is_cut() ? common_ : pool_;
}

void UnitMemory::finish_gather(Unit& unit) {
  start_gather(unit);
  wait(unit.gathered);
}

void UnitMemory::reshard(Unit& unit) {
  if (!std::exchange(unit.in_use, false)) return;
  wait(unit.gathered);
  if (auto parameters = std::exchange(unit.parameters, std::nullopt)) {
    (unit.sizes->communication_bytes() == 0 ? gather_memory(unit) : pool_).give_back(*parameters);
  }
}

void UnitMemory::attach_gradients(Unit& unit) {
  if (!unit.sizes->has_trainable_parameters || std::exchange(unit.has_gradients, true)) return;
  if (unit.sizes->is_cut()) {
    unit.gradients = pool_.take(unit.sizes->gradient_bytes(), Sort::kSecond);
  } else {
    tape_.take(unit.sizes->gradient_bytes());  // becomes the shard's own, so it is not one of the pool's
  }
}

void UnitMemory::reduce(Unit& unit) {
  if (reducing_ != nullptr) finish_sending(*reducing_);
  reducing_ = &unit;
  unit.has_gradients = false;
  if (!unit.sizes->is_cut()) {
    unit.sent = unit.reduced = issue([this, &unit] { add_to_shard_gradient(unit); });
    return;
  }
  tape_.take(unit.sizes->reduce_payload_bytes());
  unit.sent = issue([this, &unit] { pool_.give_back(*std::exchange(unit.gradients, std::nullopt)); });
  unit.reduced = issue([this, &unit] { add_to_shard_gradient(unit); });
}

void UnitMemory::finish_sending(Unit& unit) {
  const bool has_replicas = unit.sizes->groups.replicas > 1;
  wait(has_replicas ? unit.sent : unit.reduced);
}

/// The result of the reduction becomes, or is added to, the shard's gradient.
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
