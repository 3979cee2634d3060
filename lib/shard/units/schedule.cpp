#include "shard/units/schedule.h"

#include <algorithm>
#include <utility>

#include "base/util/error.h"

namespace fsdp::shard {
namespace {

// Comments state the rules of a step; [brackets] name the ShardOptions that change a rule.

using Action = Command::Action;

/// Whether the reduction continues after the collective that consumes the buffer of the whole unit's
/// gradients.
bool continues_after_sending(const ScheduledUnit& unit) {
  return unit.gradient_moves || unit.is_reduced_twice;
}

}  // namespace

Schedule::Schedule(const ShardOptions& options, std::vector<ScheduledUnit> units, CommandReader& reader,
                   bool host_runs_ahead)
    : forward_prefetch_(options.forward_prefetch.value()),
      limits_gathers_(options.limit_all_gathers),
      guesses_(options.forward_prefetch == ForwardPrefetch::kImplicit && !host_runs_ahead),
      gathers_beside_kept_(options.forward_prefetch == ForwardPrefetch::kImplicit && host_runs_ahead),
      backward_prefetch_(options.backward_prefetch.value()),
      keeps_last_(!options.reshard_last_after_forward),
      reader_(reader),
      root_units_(static_cast<size_t>(std::ranges::count_if(units, &ScheduledUnit::is_root))),
      order_(units.size(), root_units_) {
  ahead_.reserve(units.size());
  for (ScheduledUnit& unit : units) units_.push_back({.traits = std::move(unit)});
  weights_changed();
}

void Schedule::emit(Action action, size_t unit) { reader_.read({action, unit, pass_}); }

// ---- parameters

void Schedule::gather(size_t unit) {
  if (units_[unit].parameters != Parameters::kSharded) return;
  units_[unit].parameters = Parameters::kGathering;
  emit(Action::kGather, unit);
}

void Schedule::use(size_t unit) {
  gather(unit);
  if (units_[unit].slices == UnitState::Slices::kGathering) units_[unit].slices = UnitState::Slices::kThere;
  if (std::exchange(units_[unit].parameters, Parameters::kUnsharded) == Parameters::kGathering) {
    emit(Action::kWaitForGather, unit);
  }
}

void Schedule::reshard(size_t unit) {
  if (units_[unit].parameters == Parameters::kSharded) return;
  use(unit);  // a gather under way still writes to the memory
  units_[unit].parameters = Parameters::kSharded;
  emit(Action::kReshard, unit);
}

/// Frees all units; those that stay gathered for all of a step only if `of_step`.
void Schedule::reshard_all(bool of_step) {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (of_step || !units_[i].traits.stays_in_step) reshard(i);
    if (units_[i].slices != UnitState::Slices::kGathering) continue;
    units_[i].slices = UnitState::Slices::kThere;
    emit(Action::kWaitForSlices, i);
  }
}

/// A frozen unit of a model with adapters [trained_apart] that stays gathered from forward to backward stays
/// so for all micro-batches of a step, until the gradients are dropped or the weights may have changed.
void Schedule::reshard_frozen() {
  if (in_pass() || backward_is_due()) return;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].traits.stays_in_step) reshard(i);
  }
}

void Schedule::weights_changed() {
  reshard_frozen();
  expect_update(/*of_frozen=*/true);
}

void Schedule::expect_update(bool of_frozen) {
  for (UnitState& unit : units_) {
    const bool may_change = of_frozen || unit.traits.has_trainable_parameters;
    if (unit.traits.has_slices && may_change) unit.slices = UnitState::Slices::kOld;
  }
}

/// The gathers between slices [hybrid_optimizer = "global"] are issued together, in the order of the units,
/// when the first forward after an update begins: their memory always exists, and the slow network is busy
/// from the beginning of that forward. A gather within the slice waits for its unit's gather between slices.
/// Weights of trainable units may change after forget_gradients(), and between a backward pass and a forward
/// without autograd. Further forwards of a step, for other micro-batches, use the same weights.
void Schedule::gather_slices(bool records) {
  if (!records && backward_passes_ != passes_of_slices_) expect_update(/*of_frozen=*/false);
  passes_of_slices_ = backward_passes_;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].slices != UnitState::Slices::kOld) continue;
    units_[i].slices = UnitState::Slices::kGathering;
    emit(Action::kGatherSlices, i);
  }
}

// ---- forward

/// A unit is gathered when its forward begins, if it is not gathered yet, and the next unit is gathered
/// before this one computes [forward_prefetch]. The unit whose forward ended before is freed first, so two
/// units are gathered at a time [reshard_after_forward, keep_after_forward, strategy; resolved for each unit
/// in shard/units/unit_options.h].
void Schedule::forward_begins(size_t unit, bool records) {
  if (unit == 0) {
    begin_pass(records);
  } else if (in_backward()) {  // recomputation, which leaves the unit gathered for the backward that follows
    return use(unit);
  }
  if (unit == 0 || phase_ == Phase::kRest) gather_slices(records);
  check_order(unit);
  order_.begin(unit);
  if (records_) ++units_[unit].forwards;
  std::erase(ahead_, unit);
  if (gathers_beside_kept_) gather_beside_kept(unit);
  reshard_kept(/*except=*/unit);
  for (size_t i = unit; i < end_of_group(unit); ++i) use(i);
  gather_ahead();
}

/// The unit whose forward ends last stays gathered, because backward begins with it
/// [reshard_last_after_forward]. The root stays from its forward to the end of backward
/// [reshard_root_after_forward].
void Schedule::forward_ends(size_t unit, bool backward_follows) {
  if (in_backward()) return;
  if (backward_follows) order_.end(unit);
  if (unit == 0) return end_pass(backward_follows);
  const bool is_used_again = backward_follows || (records_ && units_[unit].traits.stays_in_step);
  if (is_used_again && units_[unit].traits.stays_after_forward) return;
  reshard_kept(/*except=*/unit);
  if (keeps_last_) {
    kept_ = unit;
  } else {
    reshard(unit);
  }
}

void Schedule::begin_pass(bool records) {
  FSDP_CHECK(!in_backward(), "a backward pass has failed; call Engine::reset() before the next forward");
  phase_ = Phase::kForward;
  pass_ = Pass::kForward;
  records_ = records;
  // A forward without a backward has left units gathered, and the optimizer may have changed the shards
  // since.
  reshard_all(/*of_step=*/false);
  kept_.reset();
  ahead_.clear();
  order_.begin_pass();
}

void Schedule::end_pass(bool backward_follows) {
  records_ = false;
  check_order(units_.size());
  reshard_gathered_ahead();
  order_.end_pass();
  phase_ = backward_follows ? Phase::kBackwardIsDue : Phase::kRest;
  if (!backward_follows) {
    reshard_all();
    kept_.reset();
    return;
  }
  for (size_t i = 0; i < root_units_; ++i) {
    if (!units_[i].traits.stays_after_forward) reshard(i);
  }
}

/// kExplicit gathers the units that the previous forward recorded, as long as this forward agrees with it.
/// All ranks compare the order of units in the first forward, and a later forward in another order is
/// reported.
void Schedule::check_order(size_t unit) {
  if (forward_prefetch_ != ForwardPrefetch::kExplicit) return;
  if (!order_is_compared_) {
    reader_.compare_order(unit);
    order_is_compared_ = unit == units_.size();
    return;
  }
  const bool as_before = order_.follows_last_pass() && order_.expected().value_or(units_.size()) == unit;
  if (unit == 0 || as_before || std::exchange(changed_order_is_reported_, true)) return;
  reader_.report_changed_order(unit);
}

/// On a device with kImplicit, a unit that was not gathered ahead is gathered before the unit before it is
/// freed, so the gather runs beside the compute of that unit.
void Schedule::gather_beside_kept(size_t unit) {
  if (units_[unit].parameters != Parameters::kSharded) return;
  if (limits_gathers_) reshard_gathered_ahead();  // in vain, since this unit came in its place
  for (size_t i = unit; i < end_of_group(unit); ++i) gather(i);
}

/// Units to gather ahead: one, or all that are expected [limit_all_gathers]. kImplicit needs no recorded
/// order: it gathers the next unit of the previous forward, as long as this forward agrees with it. Elsewhere
/// (in the first forward, after a change of order) the host of a device runs ahead of the compute, so that
/// nothing need be guessed. The CPU gathers the likely next unit: the one that followed this unit when it was
/// last used, or the next one in the order of the units if it never was used. After a unit that was not the
/// likely one, it gathers none.
std::span<const size_t> Schedule::next_in_forward() {
  if (forward_prefetch_ == ForwardPrefetch::kNone) return {};
  const size_t most = limits_gathers_ ? 1 : units_.size();
  return guesses_ ? order_.likely_next(most) : order_.next(most);
}

/// A unit that was gathered ahead and is not used next stays gathered until another one needs its place or
/// forward ends. It costs one all-gather, and never the memory of a third unit.
void Schedule::gather_ahead() {
  for (size_t next : next_in_forward()) {
    if (units_[next].parameters != Parameters::kSharded) continue;
    if (limits_gathers_) reshard_gathered_ahead();  // what was gathered in vain
    gather(next);
    ahead_.push_back(next);
  }
}

void Schedule::reshard_gathered_ahead() {
  for (size_t unit : ahead_) reshard(unit);
  ahead_.clear();
}

void Schedule::reshard_kept(size_t except) {
  if (!kept_ || kept_ == except) return;
  reshard(*std::exchange(kept_, std::nullopt));
}

// ---- backward

/// Backward gathers in reverse order. The next all-gather is issued before the current unit's gradients are
/// attached and computed [BackwardPrefetch::kPre], after their reduction has been issued [kPost], or when the
/// next unit's backward begins [kNone]. A unit whose output requires no gradient (frozen embeddings) has no
/// backward.
void Schedule::backward_begins(size_t unit) {
  if (!in_backward()) {
    phase_ = Phase::kBackward;
    pass_ = Pass::kBackward;
    order_.begin_backward_pass();
    kept_.reset();  // from here on each unit is freed when its own backward has ended
  }
  order_.begin_in_backward(unit);
  for (size_t i = unit; i < end_of_group(unit); ++i) use(i);
  if (backward_prefetch_ == BackwardPrefetch::kPre) gather_next_in_backward(unit);
  for (size_t i = unit; i < end_of_group(unit); ++i) {
    if (!units_[i].traits.has_trainable_parameters || std::exchange(units_[i].has_gradients, true)) continue;
    emit(Action::kAttachGradients, i);
  }
}

/// A unit is freed when its backward has ended, and its gradients are reduced during the backward of the next
/// unit. Without gradient sync nothing is reduced [training.no_sync]; the gradient buffers stay for the next
/// pass.
void Schedule::backward_ends(size_t unit) {
  if (unit != 0) {
    if (!units_[unit].traits.stays_in_step) reshard(unit);
    ++units_[unit].backwards;
    if (sync_ && units_[unit].has_gradients) reduce(unit);
  }
  if (backward_prefetch_ == BackwardPrefetch::kPost) gather_next_in_backward(unit);
}

void Schedule::gather_next_in_backward(size_t unit) {
  if (const auto next = order_.next_in_backward(unit)) gather(*next);
}

/// A unit whose backward cannot be seen to end (no input of its stage requires a gradient: the root,
/// embeddings) is reduced and freed when the whole backward pass has ended.
void Schedule::whole_backward_ends() {
  if (sync_) {
    for (size_t i = units_.size(); i-- > 0;) {
      reduce_rest(i);
      hand_over(i);
    }
    sending_.reset();
    moving_.reset();
    for (size_t i = units_.size(); i-- > 0;) {
      if (std::exchange(units_[i].is_being_reduced, false)) emit(Action::kWaitForReduction, i);
    }
  }
  for (UnitState& each : units_) each.forwards = each.backwards = 0;
  ++backward_passes_;
  reshard_all(/*of_step=*/false);
  phase_ = Phase::kRest;
  pass_ = Pass::kForward;
}

// ---- gradients

/// A reduction is issued only after the gradient buffer of the previous one has been given back. The
/// reduction over replicas or slices [strategy = "hybrid_shard", hybrid_optimizer] and the copy of a shard's
/// gradient to host memory [move_grads_to_cpu] may continue after that. At most two such copies, and two
/// reductions over slices, whose input exists in addition to their result, are under way.
///
/// Without the all-reduce over replicas, which only the last micro-batch of a step needs, a reduction ends
/// within the slice, and the rank adds its results until a reduction with the all-reduce takes them. The
/// exceptions are move_grads_to_cpu, because the sums would be on the host, and slices, whose sums would be
/// larger than the shard.
void Schedule::reduce(size_t unit) {
  const auto before = std::exchange(sending_, unit);
  if (before) wait_until_sent(*before);
  const auto moving = std::exchange(moving_, before);
  if (moving) wait_until_moved(*moving);
  UnitState& now = units_[unit];
  if (now.is_being_reduced) emit(Action::kWaitForReduction, unit);  // of an earlier use in the same pass
  now.has_gradients = false;
  now.is_being_reduced = true;
  now.is_reduced_in_slice = ends_in_slice(now);
  now.is_to_be_handed_over = !now.is_reduced_in_slice;
  emit(now.is_reduced_in_slice ? Action::kReduceInSlice : Action::kReduce, unit);
  // Where a forward has no backward, or one that cannot be seen to end, the end of the pass hands the
  // gradient over.
  if (now.backwards == now.forwards) hand_over(unit);
}

/// Reduces the gradients that the backward pass has left in the unit.
void Schedule::reduce_rest(size_t unit) {
  UnitState& rest = units_[unit];
  const bool is_left_in_slice = rest.is_reduced_in_slice && !ends_in_slice(rest);
  // The pass may not have used the unit. Its replicas have the same commands, and so the same sums to add.
  if (is_left_in_slice && !std::exchange(rest.has_gradients, true)) emit(Action::kAttachGradients, unit);
  if (rest.has_gradients) reduce(unit);
}

void Schedule::wait_until_sent(size_t unit) {
  UnitState& sent = units_[unit];
  if (!sent.is_being_reduced) return;
  if (continues_after_sending(sent.traits)) return emit(Action::kWaitForSending, unit);
  sent.is_being_reduced = false;
  emit(Action::kWaitForReduction, unit);
}

/// Does not wait for a copy that follows an all-reduce over replicas, which may take until the end of the
/// pass.
void Schedule::wait_until_moved(size_t unit) {
  const ScheduledUnit& traits = units_[unit].traits;
  const bool is_bounded = traits.is_reduced_twice ? traits.has_slices : traits.gradient_moves;
  if (units_[unit].is_being_reduced && is_bounded) {
    emit(Action::kWaitForMove, unit);
  }
}

void Schedule::hand_over(size_t unit) {
  if (std::exchange(units_[unit].is_to_be_handed_over, false)) emit(Action::kHandOver, unit);
}

// ---- between passes

bool Schedule::has_unreduced_gradients() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const UnitState& unit) { return unit.has_gradients || unit.is_reduced_in_slice; });
}

bool Schedule::any_is_gathered() const {
  const bool is_between_passes = !in_pass() && !backward_is_due();
  return std::ranges::any_of(units_, [&](const UnitState& unit) {
    return unit.parameters != Parameters::kSharded && !(is_between_passes && unit.traits.stays_in_step);
  });
}

void Schedule::forget_gradients() {
  reshard_frozen();
  for (UnitState& unit : units_) unit.has_gradients = unit.is_reduced_in_slice = false;
  expect_update(/*of_frozen=*/false);
}

void Schedule::reset() {
  for (UnitState& unit : units_) unit = {.traits = std::move(unit.traits)};
  weights_changed();
  ahead_.clear();
  kept_.reset();
  sending_.reset();
  moving_.reset();
  phase_ = Phase::kRest;
  pass_ = Pass::kForward;
  ++backward_passes_;
  records_ = false;
  order_.forget();
  order_is_compared_ = false;
}

}  // namespace fsdp::shard
