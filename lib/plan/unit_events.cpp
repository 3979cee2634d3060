#include "plan/unit_events.h"

#include <utility>

#include "shard/nominal_pass.h"

namespace fsdp::plan {

UnitEvents::UnitEvents(const shard::ShardOptions& options, const std::vector<shard::UnitSizes>& units,
                       shard::CommandReader& reader, std::function<void()> before_end)
    : units_(units),
      schedule_(options, shard::scheduled_units(units), reader),
      before_end_(std::move(before_end)) {
  by_path_[""] = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!units[i].is_root) by_path_[units[i].name] = i;
  }
}

StageEvents UnitEvents::of_micro_batch(bool sync) {
  schedule_.set_requires_gradient_sync(sync);
  const auto of = [this](auto event) {
    return [this, event](const std::string& path) {
      if (const auto unit = by_path_.find(path); unit != by_path_.end()) event(unit->second);
    };
  };
  StageEvents events;
  events.forward_begins = of([this](size_t unit) { schedule_.forward_begins(unit); });
  events.forward_ends = of([this](size_t unit) {
    before_end_();
    schedule_.forward_ends(unit);
  });
  events.backward_begins = of([this](size_t unit) { schedule_.backward_begins(unit); });
  events.backward_ends = of([this](size_t unit) { backward_ends(unit); });
  return events;
}

void UnitEvents::backward_ends(size_t unit) {
  if (unit == 0) return schedule_.whole_backward_ends();
  if (!units_[unit].input_is_differentiable) return;  // the engine does not see it end
  before_end_();
  schedule_.backward_ends(unit);
}

}  // namespace fsdp::plan
