#include "shard/engine.h"

#include <algorithm>
#include <limits>

#include "shard/autograd_hooks.h"
#include "shard/order_check.h"
#include "util/error.h"
#include "util/log.h"

namespace fsdp::shard {

Engine::Engine(const ShardOptions& options, const comm::Mesh& mesh)
    : options_(options),
      mesh_(mesh.shape()),
      groups_(process_groups(mesh, options.strategy)),
      replicated_groups_(replicated_groups(mesh)),
      pool_(std::make_shared<BufferPool>(groups_.shard)) {
  if (options_.cpu_offload) link_ = std::make_shared<HostLink>(groups_.world->device());
}

bool Engine::is_root(const Unit& unit) const {
  for (size_t i = 0; i < root_units_; ++i) {
    if (units_[i].get() == &unit) return true;
  }
  return false;
}

bool Engine::input_is_differentiable(const Unit& unit) const {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].get() == &unit) return differentiable_input_[i];
  }
  return true;
}

// ---- forward

void Engine::before_forward(size_t index) {
  require_no_full_parameters("forward");
  Unit& unit = *units_[index];
  if (index == 0) {
    FSDP_CHECK(!in_backward_, "a backward pass has failed; call Engine::reset() before the next forward");
    begin_pass();
  } else if (in_backward_) {  // activations are being recomputed
    unit.finish_gather("backward");
    return;
  }
  check_order(index);
  order_.begin(index);
  if (pass_records_) ++passes_[index].forwards;
  std::erase(ahead_, &unit);
  if (!order_.follows_last_pass()) release_gathered_ahead();
  release_kept_unit(&unit);
  unit.finish_gather("forward");
  if (index == 0) {
    for (size_t i = 1; i < root_units_; ++i) units_[i]->finish_gather("forward");
  }
  gather_ahead();
}

void Engine::after_forward(size_t index, bool backward_will_follow) {
  if (in_backward_) return;  // recomputed for its backward, which comes next
  Unit& unit = *units_[index];
  order_.end(index);
  if (index == 0) return end_pass(backward_will_follow);
  last_unit_ = &unit;
  if (backward_will_follow && !unit.options().reshard_after_forward) return;
  release_kept_unit(&unit);
  if (options_.reshard_last_after_forward) {
    unit.reshard();
  } else {
    kept_ = &unit;
  }
}

void Engine::begin_pass() {
  backward_is_due_ = false;
  // A forward whose loss was never differentiated left units gathered, and the optimizer may have run since.
  for (auto& unit : units_) unit->reshard();
  kept_ = nullptr;
  ahead_.clear();
  order_.begin_pass();
}

void Engine::end_pass(bool backward_will_follow) {
  pass_records_ = false;
  check_order(units_.size());
  release_gathered_ahead();
  order_.end_pass();
  backward_is_due_ = backward_will_follow;
  if (!backward_will_follow) {
    for (auto& unit : units_) unit->reshard();
    kept_ = nullptr;
    return;
  }
  for (size_t i = 0; i < root_units_; ++i) {
    if (units_[i]->options().reshard_after_forward) units_[i]->reshard();
  }
}

void Engine::check_order(size_t index) {
  if (options_.forward_prefetch != "explicit") return;
  auto name = [this](size_t unit) {
    return unit < units_.size() ? "unit " + units_[unit]->name() : std::string("the end of forward");
  };
  if (!order_is_checked_) {
    if (groups_.world->world_size() == 1) return;
    if (auto difference = check_across_ranks(*groups_.world, index)) {
      throw comm::AgreedError(
          util::ErrorKind::kUsage,
          util::concat(
              "fsdp.forward_prefetch = \"explicit\": expected the same order of units on all ranks; ",
              "found ", name(difference->first_ranks), " on rank 0 and ", name(difference->theirs),
              " on rank ", difference->rank, " at place ", order_.position() + 1,
              " of the first forward; run the same stages on all ranks"));
    }
    order_is_checked_ = index == units_.size();
    return;
  }
  auto expected = order_.expected();
  bool as_before = order_.follows_last_pass() && expected.value_or(units_.size()) == index;
  if (index == 0 || as_before || told_of_changed_order_) return;
  told_of_changed_order_ = true;
  if (groups_.world->rank() != 0) return;
  util::log_warning(util::concat(
      "fsdp.forward_prefetch = \"explicit\": the order of units has changed: ", name(index), " comes where ",
      name(expected.value_or(units_.size())),
      " came in the forward before; where forwards differ, units are gathered when they are used"));
}

/// The CPU computes while the collectives of its communication stream go on, so what implicit prefetch gets
/// from running ahead of a GPU, it gets by issuing the next gathers before the compute.
void Engine::gather_ahead() {
  if (options_.forward_prefetch == "none") return;
  size_t most = options_.limit_all_gathers ? 1 : std::numeric_limits<size_t>::max();
  for (size_t next : order_.next(most)) {
    Unit& unit = *units_[next];
    if (unit.state() != Unit::State::kSharded) continue;
    unit.start_gather("forward");
    ahead_.push_back(&unit);
  }
}

/// For passes that do not go where the last one went.
void Engine::release_gathered_ahead() {
  for (Unit* unit : ahead_) unit->reshard();
  ahead_.clear();
}

void Engine::release_kept_unit(const Unit* except) {
  if (kept_ == nullptr || kept_ == except) return;
  kept_->reshard();
  kept_ = nullptr;
}

// ---- backward

void Engine::before_backward(size_t index) {
  require_no_full_parameters("backward");
  if (!in_backward_) {
    in_backward_ = true;
    order_.begin_backward_pass();
    kept_ = nullptr;  // from here on each unit is freed when its own backward has ended
    when_whole_backward_ends([keep = shared_from_this()] { keep->after_whole_backward(); });
  }
  order_.begin_in_backward(index);
  size_t units = index == 0 ? root_units_ : 1;
  for (size_t i = index; i < index + units; ++i) units_[i]->finish_gather("backward");
  if (options_.backward_prefetch == "pre") prefetch_backward(index);
  for (size_t i = index; i < index + units; ++i) units_[i]->attach_gradients();
}

void Engine::prefetch_backward(size_t index) {
  if (auto next = order_.next_in_backward(index)) units_[*next]->start_gather("backward");
}

void Engine::after_backward(size_t index) {
  Unit& unit = *units_[index];
  if (index != 0) {
    unit.reshard();
    ++passes_[index].backwards;
    if (sync_ && unit.gradients_are_attached()) reduce(index);
  }
  if (options_.backward_prefetch == "post") prefetch_backward(index);
}

/// At most one gradient buffer is on its way, so at most two exist; and of shards of gradients on their way
/// to the host there are at most two.
void Engine::reduce(size_t index) {
  Unit& unit = *units_[index];
  Unit* before = std::exchange(reducing_, &unit);
  if (before != nullptr) before->finish_sending();
  if (Unit* moving = std::exchange(moving_, before)) moving->finish_moving();
  unit.finish_reduction();  // of an earlier use in the same pass
  unit.start_reduction();
  PassOfUnit& pass = passes_[index];
  pass.reduced = true;
  // A forward without a backward that tells of its end, or of which there is none, leaves it to the end.
  if (pass.backwards == pass.forwards) hand_over_gradient(index);
}

void Engine::hand_over_gradient(size_t index) {
  if (!std::exchange(passes_[index].reduced, false) || !gradient_use_) return;
  Unit& unit = *units_[index];
  unit.use_gradient([use = gradient_use_, index, name = unit.name()] {
    try {
      use(index);
    } catch (const util::Error& error) {
      throw util::Error(error.kind(), util::concat("gradient of unit ", name, ": ", error.what()));
    } catch (const std::exception& error) {
      util::fail(util::ErrorKind::kUnexpected, "gradient of unit ", name, ": ", error.what());
    }
  });
}

void Engine::finish_reductions() {
  reducing_ = moving_ = nullptr;
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) (*unit)->finish_reduction();
}

/// Units whose stage has no differentiable input (the root, embeddings) are reduced here.
void Engine::after_whole_backward() {
  if (sync_) {
    for (size_t index = units_.size(); index-- > 0;) {
      if (units_[index]->gradients_are_attached()) reduce(index);
      hand_over_gradient(index);
    }
    finish_reductions();
  }
  passes_.assign(units_.size(), {});
  for (auto& unit : units_) unit->reshard();
  in_backward_ = false;
  backward_is_due_ = false;
}

// ---- between steps

bool Engine::has_unreduced_gradients() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return unit->gradients_are_attached(); });
}

void Engine::set_gradient_use(std::function<void(size_t unit)> use) {
  if (use && !options_.move_grads_to_cpu) {
    util::fail(util::ErrorKind::kUsage,
               "Engine::set_gradient_use(): expected gradients that move to host memory; found "
               "fsdp.move_grads_to_cpu = false; set it and fsdp.cpu_offload, or use the gradients after "
               "backward()");
  }
  if (!use && link_) link_->drain();
  gradient_use_ = std::move(use);
}

void Engine::zero_gradients() {
  for (auto& unit : units_) {
    unit->drop_gradients();
    unit->storage().clear_shard_gradient();
  }
}

void Engine::require_no_full_parameters(const char* what) const {
  if (!shows_full_parameters_) return;
  util::fail(util::ErrorKind::kUsage, what,
             ": expected no FullParameters of the engine to be open; found one; close it first");
}

void Engine::require_rest(const char* what) const {
  require_no_full_parameters(what);
  if (!in_backward_ && backward_is_due_) {
    util::fail(
        util::ErrorKind::kUsage, what,
        ": expected an engine between steps; found a forward whose backward has not run; call backward() "
        "first, run a forward that needs none under at::NoGradGuard, or drop the pass and the gradients "
        "with Engine::reset()");
  }
  bool in_forward = std::any_of(units_.begin(), units_.end(),
                                [](const auto& unit) { return unit->state() != Unit::State::kSharded; });
  if (!in_backward_ && !in_forward) return;
  util::fail(
      util::ErrorKind::kUsage, what, ": expected an engine between steps; found a ",
      in_backward_ ? "backward" : "forward",
      " pass that has not ended; call it after the pass, or Engine::reset() first if the pass has failed");
}

void Engine::reset() {
  for (auto& unit : units_) unit->reset();
  if (link_) link_->reset();
  zero_gradients();
  kept_ = nullptr;
  reducing_ = moving_ = nullptr;
  passes_.assign(units_.size(), {});
  in_backward_ = false;
  backward_is_due_ = false;
  pass_records_ = false;
  ahead_.clear();
  order_.abandon_pass();
}

Traffic Engine::traffic() const {
  Traffic total;
  for (const auto& unit : units_) total += unit->traffic();
  return total;
}

void Engine::reset_counters() {
  pool_->reset_peaks();
  for (auto& unit : units_) unit->reset_traffic();
}

int64_t Engine::shard_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += static_cast<int64_t>(unit->storage().shard().nbytes());
  return bytes;
}

}  // namespace fsdp::shard
