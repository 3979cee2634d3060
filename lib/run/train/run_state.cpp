#include "run/train/run_state.h"

#include <cmath>

#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/log.h"

namespace fsdp::train {

bool RunState::stop_is_requested() const {
  return requested_on_any_rank(*communicator, {hooks.stop_requested && hooks.stop_requested()}).front();
}

bool RunState::wants_to_stop() const {
  const double hours = config.training.stop_after_hours;
  return (hooks.stop_requested && hooks.stop_requested()) ||
         (hours > 0 && training_seconds() >= hours * 3600);
}

void RunState::stop() {
  out_of_time = config.training.stop_after_hours > 0 && !stop_is_requested();
  (out_of_time ? summary.ended_early : summary.stopped) = true;
}

int64_t RunState::moment() const { return parts.outer ? parts.outer->exchanges() : position.step; }

void RunState::begin_training() {
  if (is_complete() && is_first_rank() && !continues()) {
    util::log_info(concat("nothing to train: the checkpoint is at step ", position.step,
                          ", training.steps is ", config.training.steps,
                          "; raise training.steps (or training.epochs) to go on, or set another "
                          "run.output_dir to begin anew"));
  }
  if (continues() && position.step > 0 && !std::isnan(position.loss)) summary.loss = position.loss;
  seconds_before = position.training_seconds;
  training_began = std::chrono::steady_clock::now();
  const double limit_seconds = config.training.stop_after_hours * 3600;
  out_of_time = limit_seconds > 0 && !is_complete() && seconds_before >= limit_seconds;
}

double RunState::training_seconds() const { return seconds_before + util::seconds_since(training_began); }

std::shared_ptr<void> RunState::show_evaluated_weights() const {
  return parts.outer ? parts.outer->show_outer_weights() : nullptr;
}

void RunState::count(const StepResult& result, int64_t samples) {
  if (is_due(config.logging.interval_steps)) position.loss_sum = position.losses = 0;
  ++position.step;
  position.samples_seen += samples;
  position.tokens_seen +=
      data::counts_vary(config.data) ? result.tokens : samples * config.data.sequence_length;
  if (result.without_targets) ++position.steps_without_targets;
  if (!result.is_read) return;
  position.loss = result.loss;
  if (std::isfinite(result.loss_sum)) {
    position.loss_sum += result.loss_sum;
    position.losses += result.losses;
  }
  position.grad_norm = result.grad_norm;
  if (!result.without_targets) summary.loss = result.loss;
}

double RunState::mean_loss() const {
  const bool is_only_one = position.losses == 1 && std::isfinite(position.loss);
  if (is_only_one || position.losses == 0) return position.loss;
  return position.loss_sum / static_cast<double>(position.losses);
}

std::optional<double> RunState::last_loss() const {
  return config.logging.interval_steps > 1 ? std::optional(position.loss) : std::nullopt;
}

std::optional<int64_t> RunState::skipped_steps() const {
  if (!parts.scaler && !parts.guard && position.steps_without_targets == 0) return std::nullopt;
  return position.steps_without_targets + (parts.scaler ? parts.scaler->state().skipped_steps : 0) +
         (parts.guard ? parts.guard->skipped() : 0);
}

void RunState::log(const std::string& text, bool warns) {
  progress.finish_line();
  warns ? util::log_warning(text) : util::log_info(text);
}

}  // namespace fsdp::train
