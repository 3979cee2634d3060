#include "run/train/save_schedule.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

namespace fsdp::train {
namespace {

/// Seconds to the first save of a run that chooses the interval by what saves cost.
constexpr double kFirstInterval = 300;

}  // namespace

bool saves_by_time(const checkpoint::CheckpointOptions& options) {
  return options.schedule != checkpoint::SaveTimes::kInterval || options.interval_minutes > 0;
}

int64_t steps_between_saves(const checkpoint::CheckpointOptions& options) {
  if (!saves_by_time(options)) return options.interval_steps;
  // Steps that are to be kept would hardly ever be saved by time.
  return options.keep_last > 0 ? options.keep_every : 0;
}

SaveSchedule::SaveSchedule(const checkpoint::CheckpointOptions& options, comm::Communicator& communicator)
    : options_(options),
      communicator_(communicator),
      interval_seconds_(options.schedule == checkpoint::SaveTimes::kAuto ? kFirstInterval
                                                                         : options.interval_minutes * 60) {}

bool SaveSchedule::is_due_by_steps(int64_t step) const {
  const int64_t interval = steps_between_saves(options_);
  return interval > 0 && step % interval == 0;
}

void SaveSchedule::begin(int64_t step, double now, double saved) {
  last_look_ = step;
  looked_ = now;
  saved_ = saved;
  if (saves_by_time(options_)) next_look_ = step + 1;
}

bool SaveSchedule::is_due(int64_t step, double now, bool is_saving) {
  if (is_due_by_steps(step)) return true;
  if (!saves_by_time(options_)) return false;
  if (is_saving) {
    next_look_ = kWhenSaved;
    return false;
  }
  // A save by time follows a step that was known to read its outcome.
  if (next_look_ == kWhenSaved) next_look_ = step + 1;
  if (step < next_look_) return false;
  const int64_t steps = is_continuous() ? 0 : steps_to_next_look(step, now);
  next_look_ = step + std::max<int64_t>(steps, 1);
  return steps == 0;
}

double SaveSchedule::note_save(double now) {
  const double before = std::exchange(saved_, now);
  return is_continuous() ? now - before : interval_seconds_;
}

int64_t SaveSchedule::steps_to_next_look(int64_t step, double now) {
  constexpr double kMost = 100;
  at::Tensor steps = at::full({1}, 0, at::kLong);
  const double left = saved_ + interval_seconds_ - now;
  if (communicator_.rank() == 0 && left > 0) {
    const double step_seconds =
        (now - looked_) / static_cast<double>(std::max<int64_t>(step - last_look_, 1));
    steps.fill_(static_cast<int64_t>(std::clamp(left / 2 / std::max(step_seconds, 1e-9), 1.0, kMost)));
  }
  communicator_.all_reduce(steps, comm::ReduceOp::kMax, {.unit = "time of the next save"})->wait();
  last_look_ = step;
  looked_ = now;
  return *steps.const_data_ptr<int64_t>();
}

}  // namespace fsdp::train
