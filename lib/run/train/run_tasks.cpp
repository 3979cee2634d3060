#include "run/train/run_tasks.h"

#include "base/util/error.h"

namespace fsdp::train {

void RunTasks::between_steps(ObservedStep& step) {
  if (run_.summary.stopped || !(run_.is_complete() || run_.is_due(run_.config.evaluation.interval_steps)))
    return;
  step.was_examined = true;
  run_.progress.begin("tasks", run_.position.step);
  const MeasuredPause pause(run_.time_left, Pause::kValidation);
  const auto shown = run_.show_evaluated_weights();
  const auto results = scores_.of(*run_.parts.model, *run_.mesh, [this] { return run_.stop_is_requested(); });
  run_.summary.stopped = !results.has_value();
  if (!results || !run_.is_first_rank()) return;
  nlohmann::ordered_json line = {{"step", run_.position.step}};
  line.update(task_numbers(*results));
  metrics_.write_validation(line);
  for (const TaskResult& result : *results) {
    run_.log(concat("at step ", run_.position.step, ", ", task_text(result)));
  }
}

}  // namespace fsdp::train
