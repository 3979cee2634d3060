#include "run/train/run_saves.h"

namespace fsdp::train {

void RunSaves::save_if(bool due, bool best) {
  best = best && run_.config.checkpoint.keep_best;
  due = due || checkpointer_.wants_save();
  if (!due && !best) return checkpointer_.poll();
  run_.position.training_seconds = run_.training_seconds();
  metrics_.flush();
  run_.faults.at(FaultPlace::kSave, run_.position.step);
  run_.progress.begin("saving", run_.position.step);
  const MeasuredPause pause(run_.time_left, Pause::kSave, due);
  if (saves_by_time(run_.config.checkpoint)) run_.time_left.set_save_interval(schedule_.note_save(run_.position.training_seconds));
  best ? checkpointer_.save_best(run_.position) : checkpointer_.save(run_.position);
}

void RunSaves::begin(ObservedStep& last) {
  const int64_t step = run_.position.step;
  schedule_.begin(step, run_.training_seconds(), checkpointer_.saved_seconds());
  const bool repeats = run_.continues() && step > 0 && schedule_.is_due_by_steps(step) &&
                       checkpointer_.saved_step() != step;
  save_if(repeats, last.is_best);
}

void RunSaves::between_steps(ObservedStep& step) {
  save_if(schedule_.is_due(run_.position.step, run_.training_seconds(), checkpointer_.is_saving()),
          step.is_best);
}

}  // namespace fsdp::train
