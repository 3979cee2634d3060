#include "shard/units/nominal_pass.h"

namespace fsdp::shard {

std::vector<ScheduledUnit> scheduled_units(const std::vector<UnitSizes>& units) {
  std::vector<ScheduledUnit> all;
  for (const UnitSizes& unit : units) {
    all.push_back({.name = unit.name,
                   .is_root = unit.is_root,
                   .is_cut = unit.is_cut(),
                   .is_reduced_twice = unit.is_cut() && (unit.groups.replicas > 1 || unit.has_slices()),
                   .adds_before_all_reduce = adds_before_all_reduce(unit.groups, unit.options.storage),
                   .has_slices = unit.has_slices(),
                   .stays_after_forward = unit.options.stays_after_forward,
                   .stays_in_step = unit.stays_in_step(),
                   .has_trainable_parameters = unit.has_trainable_parameters});
  }
  return all;
}

NominalPass::NominalPass(const std::vector<UnitSizes>& units) {
  std::vector<size_t> open;  // outermost first
  const auto end_last = [&] {
    forward_.push_back({open.back(), false});
    open.pop_back();
  };
  for (size_t i = 0; i < units.size(); ++i) {
    has_backward_.push_back(units[i].output_is_differentiable);
    backward_is_seen_to_end_.push_back(units[i].input_is_differentiable);
    if (i != 0 && units[i].is_root) continue;
    while (open.size() > 1 && !units[i].name.starts_with(units[open.back()].name + ".")) end_last();
    open.push_back(i);
    forward_.push_back({i, true});
  }
  while (!open.empty()) end_last();
}

void NominalPass::run(Schedule& schedule, const Observer& observe) const {
  const auto note = [&observe](const StageEvent& event, Pass pass) {
    if (observe) observe(event, pass);
  };
  for (const StageEvent& event : forward_) {
    note(event, Pass::kForward);
    event.begins ? schedule.forward_begins(event.unit)
                 : schedule.forward_ends(event.unit, has_backward_[event.unit]);
  }
  for (auto reversed = forward_.rbegin(); reversed != forward_.rend(); ++reversed) {
    const StageEvent event{reversed->unit, !reversed->begins};
    if (event.unit == 0 && !event.begins) break;
    if (!has_backward_[event.unit] || (!event.begins && !backward_is_seen_to_end_[event.unit])) continue;
    note(event, Pass::kBackward);
    event.begins ? schedule.backward_begins(event.unit) : schedule.backward_ends(event.unit);
  }
  note({0, false}, Pass::kBackward);
  schedule.whole_backward_ends();
}

}  // namespace fsdp::shard
