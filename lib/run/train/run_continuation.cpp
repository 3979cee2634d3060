#include "run/train/run_continuation.h"

#include <string>
#include <utility>

#include "base/util/error.h"
#include "base/util/log.h"
#include "base/util/text.h"
#include "run/train/local_steps.h"
#include "run/train/reproducible_step.h"
#include "state/outer/outer_optimizer.h"

namespace fsdp::train {

void RunContinuation::restore() {
  const TrainingState state = state_();
  const nlohmann::json record = memory().restore(
      state, *run_.mesh, [&] { run_.faults.at(FaultPlace::kTransfer, memory().state_step()); });
  run_.position =
      restore_training_record(record, record.at("step").get<int64_t>(), state, "the state from memory");
  if (run_.parts.outer) continue_exchanges(*run_.parts.outer, record, run_);
  begun_ = memory().begun(*run_.communicator);
  if (begun_ && run_.is_first_rank()) {
    util::log_info(concat(begun_->leaves, " of ", begun_->all, " micro-batches of step ",
                          run_.position.step + 1, " are done"));
  }
  checkpointer_.take_over(record.at("origin"));
  validation_.line() = nlohmann::ordered_json::parse(record.at("validation_line").get<std::string>());
  record.at("flops_a_token").at(0).get_to(run_.flops.model);
  record.at("flops_a_token").at(1).get_to(run_.flops.hardware);
  if (run_.config.logging.peak_tflops > 0) return;
  record.at("peak_rate").at(0).get_to(run_.peak.flops_per_second);
  record.at("peak_rate").at(1).get_to(run_.peak.share_of_threads);
}

void RunContinuation::hand_to(TrainStep& step) {
  step_ = &step;
  // Only ranks with a ReproducibleStep have begun one.
  if (begun_) dynamic_cast<ReproducibleStep&>(step).continue_with(*std::exchange(begun_, std::nullopt));
}

nlohmann::json RunContinuation::record() const {
  nlohmann::json record = training_record(run_.config, state_(), run_.position);
  record["origin"] = checkpointer_.origin();
  record["peak_rate"] = {run_.peak.flops_per_second, run_.peak.share_of_threads};
  record["flops_a_token"] = {run_.flops.model, run_.flops.hardware};
  record["validation_line"] = validation_.line().dump();  // as text, which keeps its order
  record["step"] = run_.position.step;
  if (run_.parts.outer) record.update(exchange_record(*run_.parts.outer));
  return record;
}

void RunContinuation::keep() {
  run_.position.training_seconds = run_.training_seconds();
  memory().keep(state_(), run_.moment(), record());
  keep_rest_of_step();
}

void RunContinuation::keep_rest_of_step() {
  if (run_.parts.outer && run_.parts.outer->can_finish()) {
    run_.parts.outer->finish();
    return memory().keep_next(state_(), record());
  }
  auto* step = dynamic_cast<ReproducibleStep*>(step_);
  if (step == nullptr || !step->can_finish()) {
    if (auto begun = step != nullptr ? step->begun() : begun_) memory().keep_begun(std::move(*begun));
    return;
  }
  const int64_t samples = step->pending_position().samples;
  try {
    run_.count(step->finish(), samples);
  } catch (const util::Error&) {
    return;  // it has diverged: no rank has updated anything
  }
  memory().keep_next(state_(), record());
}

}  // namespace fsdp::train
