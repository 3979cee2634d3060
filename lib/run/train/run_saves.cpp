#include "run/train/run_saves.h"

#include "base/util/clock.h"
#include "base/util/text.h"

namespace fsdp::train {

void RunSaves::save_if(bool due, bool best) {
  best = best && run_.config.checkpoint.keep_best;
  due = due || checkpointer_.wants_save();
  if (!due && !best) return checkpointer_.poll();
  const auto began = std::chrono::steady_clock::now();
  run_.position.training_seconds = run_.training_seconds();
  metrics_.flush();
  run_.faults.at(FaultPlace::kSave, run_.position.step);
  run_.progress.begin("saving", run_.position.step);
  const MeasuredPause pause(run_.time_left, Pause::kSave, due);
  const double expected = schedule_.note_save(run_.position.training_seconds);
  if (saves_by_time(run_.config.checkpoint)) run_.time_left.set_save_interval(expected);
  if (history_) history_->note(seconds_of_start());
  best ? checkpointer_.save_best(run_.position) : checkpointer_.save(run_.position);
  ++saves_;
  save_seconds_ += util::seconds_since(began);
  has_new_cost_ = true;
}

void RunSaves::begin(ObservedStep& last) {
  const int64_t step = run_.position.step;
  if (run_.is_first_rank()) history_.emplace(run_.output_folder(), /*begins=*/!run_.continues());
  schedule_.begin(step, run_.training_seconds(), checkpointer_.saved_seconds());
  const bool repeats =
      run_.continues() && step > 0 && schedule_.is_due_by_steps(step) && checkpointer_.saved_step() != step;
  save_if(repeats, last.is_best);
}

void RunSaves::between_steps(ObservedStep& step) {
  if (has_new_cost_ && history_) use_cost();
  save_if(schedule_.is_due(run_.position.step, run_.training_seconds(), checkpointer_.is_saving()),
          step.is_best);
}

void RunSaves::finish() {
  if (history_ && !run_.summary.left) history_->end(seconds_of_start());
}

void RunSaves::use_cost() {
  constexpr int64_t kTypicalSaves = 3;  // the first saves may cost more than others
  const checkpoint::CheckpointOptions& options = run_.config.checkpoint;
  const std::optional<double> step_seconds = run_.time_left.step_seconds();
  if (!step_seconds) return;
  has_new_cost_ = false;
  const simulate::Faults faults =
      expected_faults(*history_, run_.communicator->world_size(),
                      (save_seconds_ + checkpointer_.copy_seconds()) / static_cast<double>(saves_));
  std::string text;
  if (options.schedule == checkpoint::SaveTimes::kAuto) {
    const double best = simulate::best_interval(faults, *step_seconds);
    schedule_.set_interval(best);
    run_.time_left.set_save_interval(best);
    text = concat(cost_text(*history_, faults.checkpoint_seconds), ": it is saved every ",
                  util::human_duration(best));
  } else if (saves_ >= kTypicalSaves) {
    const double interval = saves_by_time(options)
                                ? schedule_.interval_seconds()
                                : static_cast<double>(options.interval_steps) * *step_seconds;
    if (interval > 0) text = advice_text(*history_, faults, interval, *step_seconds);
  }
  if (text.empty() || has_spoken_) return;
  has_spoken_ = true;
  run_.log(text);
}

}  // namespace fsdp::train
