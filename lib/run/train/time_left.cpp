#include "run/train/time_left.h"

#include <cmath>

#include "run/train/save_schedule.h"

namespace fsdp::train {
namespace {

/// Number of steps over which the mean time of a step is taken.
constexpr double kWindow = 100;

}  // namespace

void TimeLeft::set_schedule(const config::Config& config) {
  total_steps_ = config.training.steps;
  const bool validates = !config.data.validation.empty();
  due_[index(Pause::kValidation)] = {.interval = validates ? config.evaluation.interval_steps : 0,
                                     .at_end = validates};
  due_[index(Pause::kSample)] = {.interval = config.logging.sample_every};
  due_[index(Pause::kSave)] = {.interval = steps_between_saves(config.checkpoint),
                               .at_end = config.checkpoint.save_at_end};
  save_interval_ = config.checkpoint.interval_minutes * 60;
}

void TimeLeft::add_steps(int64_t steps, double seconds) {
  if (readings_++ == 1) steps_ = step_seconds_ = 0;  // the first step takes longer than others
  const double remembered = std::pow(1 - 1 / kWindow, static_cast<double>(steps));
  steps_ = steps_ * remembered + static_cast<double>(steps);
  step_seconds_ = step_seconds_ * remembered + seconds;
}

void TimeLeft::add_pause(Pause kind, double seconds, bool was_due) {
  Seen& seen = seen_[index(kind)];
  ++seen.count;
  if (!was_due) ++seen.unexpected;
  seen.seconds += seconds;
}

double TimeLeft::pauses_from(int64_t step, Pause kind) const {
  const Due& due = due_[index(kind)];
  double count = 0;
  if (due.interval > 0) {
    const int64_t before = (step - 1) / due.interval;
    count = static_cast<double>(total_steps_ / due.interval - before);
  }
  const bool ends_between = due.interval == 0 || total_steps_ % due.interval != 0;
  if (due.at_end && ends_between) count += 1;
  return count;
}

std::optional<double> TimeLeft::seconds_after(int64_t step) const {
  if (steps_ == 0) return std::nullopt;
  double seconds = static_cast<double>(total_steps_ - step) * step_seconds_ / steps_;
  for (const Pause kind : {Pause::kValidation, Pause::kSample, Pause::kSave}) {
    const Seen& seen = seen_[index(kind)];
    if (seen.count == 0) continue;
    double count = pauses_from(step, kind);
    if (kind == Pause::kSave && save_interval_ > 0) count += std::floor(seconds / save_interval_);
    if (const int64_t validations = seen_[index(Pause::kValidation)].count;
        kind == Pause::kSave && validations > 0) {  // saves of the best state follow validations
      count += pauses_from(step, Pause::kValidation) * static_cast<double>(seen.unexpected) /
               static_cast<double>(validations);
    }
    seconds += count * seen.seconds / static_cast<double>(seen.count);
  }
  return seconds;
}

}  // namespace fsdp::train
