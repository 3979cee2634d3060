#include "state/groups/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::optim {
namespace {

using Moment = ScheduleMoment;

double to_floor(const ScheduleOptions& schedule, double share) {
  return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * share;
}

double constant(const ScheduleOptions&, const Moment&) { return 1; }

double linear(const ScheduleOptions& schedule, const Moment& at) {
  return to_floor(schedule, 1 - at.progress());
}

double cosine(const ScheduleOptions& schedule, const Moment& at) {
  return to_floor(schedule, (1 + std::cos(std::numbers::pi * at.progress())) / 2);
}

double polynomial(const ScheduleOptions& schedule, const Moment& at) {
  return to_floor(schedule, std::pow(1 - at.progress(), schedule.power));
}

double wsd(const ScheduleOptions& schedule, const Moment& at) {
  int64_t wanted = schedule.decay_steps > 0 ? schedule.decay_steps : std::max<int64_t>(at.total / 10, 1);
  int64_t decay = std::min(wanted, at.total - at.peak);
  int64_t left = at.total - at.step;
  if (left >= decay) return 1;
  return to_floor(schedule, static_cast<double>(left) / static_cast<double>(decay));
}

double inverse_sqrt(const ScheduleOptions& schedule, const Moment& at) {
  return std::max(schedule.min_lr_ratio,
                  std::sqrt(static_cast<double>(at.peak) / static_cast<double>(at.step)));
}

double tri_stage(const ScheduleOptions& schedule, const Moment& at) {
  const int64_t end_of_hold = at.peak + schedule.hold_steps;
  if (at.step <= end_of_hold) return 1;
  const int64_t left = at.total - end_of_hold;
  const int64_t decay = schedule.decay_steps > 0 ? std::min(schedule.decay_steps, left) : left;
  const double done = static_cast<double>(at.step - end_of_hold) / static_cast<double>(decay);
  return std::pow(schedule.min_lr_ratio, std::min(done, 1.0));
}

const std::vector<util::Registry<ScheduleShape>::Named>& built_in_shapes() {
  static const std::vector<util::Registry<ScheduleShape>::Named> shapes = {
      {"constant", constant},         {"cosine", cosine},         {"linear", linear},      {"wsd", wsd},
      {"inverse_sqrt", inverse_sqrt}, {"polynomial", polynomial}, {"tri_stage", tri_stage}};
  return shapes;
}

}  // namespace

util::Registry<ScheduleShape>& schedule_shapes() {
  static util::Registry<ScheduleShape> shapes("learning-rate schedule", built_in_shapes());
  return shapes;
}

bool is_built_in_schedule(std::string_view name) {
  return std::any_of(built_in_shapes().begin(), built_in_shapes().end(),
                     [&](const auto& shape) { return shape.name == name; });
}

std::vector<std::string> schedule_names() { return schedule_shapes().names(); }

void check_schedule(const ScheduleOptions& schedule) {
  schedule_shapes().get(schedule.name, "lr_scheduler.name");
  require(schedule.warmup_steps >= 0 && schedule.hold_steps >= 0 && schedule.decay_steps >= 0,
          "lr_scheduler.warmup_steps = ", schedule.warmup_steps,
          ", lr_scheduler.hold_steps = ", schedule.hold_steps,
          " and lr_scheduler.decay_steps = ", schedule.decay_steps,
          " must not be negative; correct the config");
  require(schedule.warmup_ratio >= 0 && schedule.warmup_ratio < 1,
          "lr_scheduler.warmup_ratio = ", schedule.warmup_ratio,
          " must be a share from 0 to below 1; correct the config");
  require(schedule.min_lr_ratio >= 0 && schedule.min_lr_ratio <= 1,
          "lr_scheduler.min_lr_ratio = ", schedule.min_lr_ratio,
          " must be a share from 0 to 1; correct the config");
  require(schedule.name != "tri_stage" || schedule.min_lr_ratio != 0,
          "lr_scheduler.min_lr_ratio = 0 must be above 0 for tri_stage, whose "
          "decay is exponential; 0.01 is usual");
  require(schedule.power > 0 && std::isfinite(schedule.power), "lr_scheduler.power = ", schedule.power,
          " must be a number above 0; correct the config");
}

int64_t warmup_steps_of(const ScheduleOptions& schedule, int64_t total_steps) {
  if (schedule.warmup_ratio == 0) return std::min(schedule.warmup_steps, total_steps);
  // 0.07 * 100 is slightly more than 7, but means 7 steps, not 8.
  constexpr double kRounding = 1e-9;
  const double steps = schedule.warmup_ratio * static_cast<double>(total_steps);
  return std::min(static_cast<int64_t>(std::ceil(steps - kRounding * steps)), total_steps);
}

std::string cut_of_schedule(const ScheduleOptions& schedule, int64_t total_steps) {
  const int64_t warmup = warmup_steps_of(schedule, total_steps), left = total_steps - warmup;
  std::vector<std::string> cuts;
  const auto cut = [&](const char* key, int64_t wanted, int64_t room) {
    if (wanted > room) cuts.push_back(concat("lr_scheduler.", key, " is cut from ", wanted, " to ", room));
  };
  if (schedule.warmup_ratio == 0) cut("warmup_steps", schedule.warmup_steps, warmup);
  if (schedule.name == "wsd") cut("decay_steps", schedule.decay_steps, left);
  if (schedule.name == "tri_stage") {
    const int64_t hold = std::min(schedule.hold_steps, left);
    cut("hold_steps", schedule.hold_steps, hold);
    cut("decay_steps", schedule.decay_steps, left - hold);
  }
  if (cuts.empty()) return "";
  return concat("the run has only ", total_steps, " steps, so ", util::join(cuts, " and "),
                "; a longer run has the whole schedule");
}

double lr_at(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, int64_t step,
             int64_t total_steps) {
  FSDP_CHECK(step >= 1 && total_steps >= 1, "step ", step, " of ", total_steps);
  check_schedule(schedule);
  step = std::min(step, total_steps);
  const int64_t warmup = warmup_steps_of(schedule, total_steps);
  if (step < warmup) return optimizer.lr * static_cast<double>(step) / static_cast<double>(warmup);
  int64_t peak = std::max<int64_t>(warmup, 1);
  if (step <= peak) return optimizer.lr;
  return optimizer.lr *
         schedule_shapes().get(schedule.name, "lr_scheduler.name")(schedule, {peak, step, total_steps});
}

}  // namespace fsdp::optim
