// What accompanies the steps of a run, in its order.

#include <bit>

#include "base/util/library_pages.h"
#include "base/util/start_clock.h"
#include "base/util/text.h"
#include "run/train/local_steps.h"
#include "run/train/product_trials.h"
#include "run/train/run_tasks.h"
#include "run/train/step_profile.h"
#include "run/train/trainer.h"
#include "shard/engine/rank_checks.h"

namespace fsdp::train {
namespace {

/// Counts a step, and ends the run if the step was asked to stop.
class StepCount final : public StepObserver {
 public:
  /// `read_outcome`: TrainStep::read_outcome() of the run's step.
  StepCount(RunState& run, std::function<void(StepResult&)> read_outcome)
      : run_(run), read_outcome_(std::move(read_outcome)) {}

  /// Collective if the step ends the run and training.stop_after_hours is set.
  void end_step(ObservedStep& step) override {
    step.ends_run = step.result.stop && step.position.step < run_.config.training.steps;
    if (step.ends_run) read_outcome_(step.result);
    run_.count(step.result, step.position.samples);
    if (step.ends_run) run_.stop();
  }

 private:
  RunState& run_;
  std::function<void(StepResult&)> read_outcome_;
};

/// Logs skipped steps on the first rank. Steps without targets may be many, so fewer and fewer of them are
/// logged.
class SkippedSteps final : public StepObserver {
 public:
  explicit SkippedSteps(RunState& run) : run_(run) {}

  void end_step(ObservedStep& step) override {
    const int64_t without_targets = run_.position.steps_without_targets;
    if (!step.result.skipped || !run_.is_first_rank()) return;
    if (step.result.without_targets && !std::has_single_bit(static_cast<uint64_t>(without_targets))) return;
    std::string text = concat("step ", run_.position.step, " was skipped: ", step.result.skip_reason);
    if (step.result.without_targets) {
      text += concat(" (", without_targets, without_targets == 1 ? " such step" : " such steps",
                     " so far); raise data.sequence_length or the batch, or check data.train_on");
    }
    run_.log(text, /*warns=*/true);
  }

 private:
  RunState& run_;
};

/// Unmaps library pages before memory is at its peak, and once more for what the first step alone uses.
class LibraryPages final : public StepObserver {
 public:
  void begin(ObservedStep& last) override {
    last_step_ = last.position.step;
    util::unmap_library_pages();
  }
  void between_steps(ObservedStep& step) override {
    if (step.position.step == last_step_ + 1) util::unmap_library_pages();
  }

 private:
  int64_t last_step_ = 0;
};

/// Shows sampled texts between steps (logging.sample_every).
class SampledTexts final : public StepObserver {
 public:
  SampledTexts(RunState& run, const SampleText& sample_text) : run_(run), sample_text_(sample_text) {}

  void between_steps(ObservedStep& step) override {
    if (!run_.is_due(run_.config.logging.sample_every)) return;
    step.was_examined = true;
    if (run_.summary.stopped) return;
    run_.progress.begin("sample", run_.position.step);
    const MeasuredPause pause(run_.time_left, Pause::kSample);
    const auto shown = run_.show_evaluated_weights();
    const auto text = sample_text_.of(
        *run_.parts.model, *run_.communicator, [this] { return run_.stop_is_requested(); },
        marks_whole_inputs(run_.config, *run_.mesh));
    run_.summary.stopped = !text.has_value();
    if (run_.is_first_rank() && text) run_.log(concat("sample at step ", run_.position.step, ":\n", *text));
  }

 private:
  RunState& run_;
  const SampleText& sample_text_;
};

/// Decides between steps whether the run ends before training.steps, and logs why it ended early.
class RunEnd final : public StepObserver {
 public:
  RunEnd(RunState& run, const ValidationHistory& validations) : run_(run), validations_(validations) {}

  void begin(ObservedStep&) override {
    run_.summary.ended_early = run_.out_of_time || (!run_.is_complete() && validations_.patience_is_over());
  }
  void between_steps(ObservedStep& step) override {
    RunSummary& summary = run_.summary;
    const bool goes_on = !run_.is_complete();
    // The next step checks only at its end, which a launcher may not wait for.
    if (step.was_examined && !summary.stopped && goes_on) summary.stopped = run_.stop_is_requested();
    summary.ended_early = goes_on && validations_.patience_is_over();
    summary.left = step.result.leave && goes_on && !summary.stopped && !summary.ended_early;
  }
  void finish() override {
    if (!run_.summary.ended_early || !run_.is_first_rank()) return;
    const std::string reason =
        run_.out_of_time
            ? concat("it has trained for ", util::fixed(run_.training_seconds() / 3600, 2),
                     " hours, and training.stop_after_hours is ", run_.config.training.stop_after_hours)
            : concat("its last ", validations_.not_better_in_a_row(),
                     " validations were not better than the best before, and evaluation.patience is ",
                     run_.config.evaluation.patience);
    run_.log(concat("the run ends at step ", run_.position.step, " of ", run_.config.training.steps, ": ",
                    reason));
  }

 private:
  RunState& run_;
  const ValidationHistory& validations_;
};

}  // namespace

/// Returns the observers in the order in which they act. Collective are the ends of steps that stop the run
/// or exchange local steps, the trials of products, the comparisons of ranks and of replicas, validations,
/// samples, saves and the decisions to end the run.
StepObservers Trainer::make_observers() {
  StepObservers observers;
  const auto add = [&](StepCalls::Calls calls) {
    observers.push_back(std::make_shared<StepCalls>(std::move(calls)));
  };
  const config::Config& config = run_.config;
  if (const auto activity = run_.hooks.activity) {
    add({.begin = [activity](int64_t step) { activity->begin_step(step); }});
  }
  if (RankPaces* paces = metrics_->paces()) {
    add({.begin = [paces](int64_t) { paces->begin_step(); }, .end = [paces](int64_t) { paces->end_step(); }});
  }
  add({.begin = [this](int64_t step) { run_.faults.at(FaultPlace::kStep, step); }});
  if (auto trials = make_product_trials(run_)) observers.push_back(std::move(trials));
  if (trace_) add({.begin = [this](int64_t step) { trace_->begin_step(step); }});
  add({.end = [](int64_t) { util::end_start_record(); }});
  const auto profile =
      std::make_shared<StepProfile>(run_.output_folder(), run_.communicator->rank(),
                                    config.logging.profile_steps, run_.communicator->device());
  add({.begin = [profile](int64_t step) { profile->begin_step(step); },
       .end = [profile](int64_t) { profile->end_step(); }});
  add({.begin = [this](int64_t step) { run_.progress.begin(concat("step ", step), step - 1); }});
  observers.push_back(
      std::make_shared<StepCount>(run_, [this](StepResult& result) { train_step_->read_outcome(result); }));
  if (run_.parts.outer) observers.push_back(std::make_shared<LocalSteps>(run_));
  observers.push_back(std::make_shared<SkippedSteps>(run_));
  observers.push_back(metrics_);
  if (!run_.continues()) observers.push_back(std::make_shared<LibraryPages>());
  add({.between = [this, &config](int64_t step) {
    if (!run_.is_due(config.fsdp.replica_check_interval)) return;
    shard::require_equal_replicas(*run_.parts.engine, concat("after step ", step));
  }});
  observers.push_back(validation_);
  if (task_scores_) observers.push_back(std::make_shared<RunTasks>(run_, *metrics_, *task_scores_));
  if (sample_text_) observers.push_back(std::make_shared<SampledTexts>(run_, *sample_text_));
  observers.push_back(saves_);
  if (exporter_) observers.push_back(exporter_);
  observers.push_back(std::make_shared<RunEnd>(run_, validation_->history()));
  return observers;
}

}  // namespace fsdp::train
