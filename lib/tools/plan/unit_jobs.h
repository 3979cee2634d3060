#pragma once

// UnitJobs, UnitUpdate: the parts of a step that all readers of the schedule's commands have in common.

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>

#include "setup/config/config.h"
#include "shard/units/schedule.h"
#include "shard/units/unit_sizes.h"

namespace fsdp::plan {

/// The collectives of a unit under way, as numbers; 0: none.
struct UnitJobs {
  size_t slices = 0, gather = 0, sending = 0, reduction = 0;

  /// Follows a command: `issue(after)` begins the command's collectives once job `after` is done and returns
  /// the first and the last of them; `wait(job)` waits.
  template <typename Issue, typename Wait>
  void follow(const shard::Command& command, const shard::UnitSizes& unit, const Issue& issue,
              const Wait& wait) {
    using Action = shard::Command::Action;
    switch (command.kind) {
      case Action::kGatherSlices:
        slices = issue(size_t{0}).second;
        return;
      case Action::kWaitForSlices:
        return wait(slices);
      case Action::kGather:
        gather = issue(slices).second;
        return;
      case Action::kWaitForGather:
        return wait(gather);
      case Action::kReduce:
      case Action::kReduceInSlice:
        std::tie(sending, reduction) = issue(size_t{0});
        if (!unit.is_cut()) sending = reduction;
        return;
      case Action::kWaitForSending:
        return wait(sending);
      case Action::kWaitForMove:
      case Action::kWaitForReduction:
        return wait(reduction);
      case Action::kReshard:
      case Action::kAttachGradients:
      case Action::kHandOver:
        return;
    }
  }
};

/// Issues `collectives` one after another, the first after job `after`, by `issue(collective, after)`.
/// Returns the first and the last job; `after` if there are no collectives.
template <typename Collectives, typename Issue>
std::pair<size_t, size_t> issue_in_order(const Collectives& collectives, size_t after, const Issue& issue) {
  std::pair<size_t, size_t> jobs{after, after};
  bool is_first = true;
  for (const auto& collective : collectives) {
    jobs.second = issue(collective, jobs.second);
    if (std::exchange(is_first, false)) jobs.first = jobs.second;
  }
  return jobs;
}

/// Calls `micro_batch(sync, is_last, times)` for the micro-batches of a step after the first step, which
/// makes the order of units known. No collective is under way between micro-batches, so the middle ones are
/// alike and are played once, for all of them.
template <typename MicroBatch>
void for_micro_batches(const config::TrainingOptions& training, const MicroBatch& micro_batch) {
  const int64_t count = training.gradient_accumulation_steps;
  if (count > 1) micro_batch(!training.no_sync, false, 1.0);
  if (count > 2) micro_batch(!training.no_sync, false, static_cast<double>(count - 2));
  micro_batch(true, true, 1.0);
}

/// Finds when a unit that is updated alone, in backward, is due: after its last reduction.
class UnitUpdate {
 public:
  /// Whether the unit is to be updated now. `updates`: whether units are updated in this micro-batch.
  bool is_due_after(const shard::Command& command, const shard::UnitSizes& unit, bool updates) {
    using Action = shard::Command::Action;
    if (command.kind == Action::kReduce || command.kind == Action::kReduceInSlice) is_being_reduced_ = true;
    if (command.kind == Action::kWaitForReduction) is_being_reduced_ = false;
    if (command.kind == Action::kHandOver && updates) {
      is_due_ = true;
      if (is_reduced_at_once(unit)) is_being_reduced_ = false;
    }
    return !is_being_reduced_ && std::exchange(is_due_, false);
  }
  /// Whether the reduction communicates nothing.
  static bool is_reduced_at_once(const shard::UnitSizes& unit) {
    return !unit.is_cut() && unit.groups.replicas == 1 && !unit.has_slices();
  }

 private:
  bool is_due_ = false, is_being_reduced_ = false;
};

}  // namespace fsdp::plan
