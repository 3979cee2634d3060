#include "run/train/run_validation.h"

#include "base/util/error.h"
#include "base/util/text.h"

namespace fsdp::train {

void RunValidation::open() {
  const config::Config& config = run_.config;
  loader_.emplace(open_validation_data(config, *run_.communicator));
  if (run_.is_first_rank() && !run_.continues()) {
    const auto survey = loader_->samples().survey(loader_->num_samples());
    if (survey) data::require_targets(*survey, config.data, "data.validation");
  }
  token_bytes_ = token_bytes(config, run_.is_first_rank());
  if (!token_bytes_ && config.evaluation.best_metric == config::BestMetric::kValidationBitsPerByte) {
    fail(ErrorKind::kUsage,
         "evaluation.best_metric: expected another metric than validation_bits_per_byte, because the bytes "
         "of tokens are not known; correct data.tokenizer or choose another metric");
  }
}

bool RunValidation::is_due() const {
  const int64_t step = run_.position.step;
  if (!loader_ || step == 0 || history_.validated_at() == step) return false;
  return run_.is_complete() || run_.is_due(run_.config.evaluation.interval_steps);
}

void RunValidation::begin(ObservedStep& last) {
  const int64_t step = run_.position.step;
  const bool was_best = run_.continues() && step > 0 && history_.best() && history_.best()->step == step;
  last.is_best = is_due() ? validate() : was_best;
}

void RunValidation::between_steps(ObservedStep& step) {
  if (!is_due()) return;
  step.was_examined = true;
  step.is_best = validate();
}

bool RunValidation::validate() {
  const int64_t step = run_.position.step;
  const config::Config& config = run_.config;
  run_.progress.begin("validation", step);
  const MeasuredPause pause(run_.time_left, Pause::kValidation);
  const auto shown = run_.show_evaluated_weights();
  const auto finished =
      train::validate(*run_.parts.model, *loader_, *run_.communicator,
                      {.bytes = token_bytes_.get(),
                       .accuracy = config.evaluation.accuracy,
                       .prefetch = prefetch_options(config, *run_.mesh),
                       .cut = run_.parts.cut,
                       .objective = run_.parts.objective.get(),
                       .by_sample = config.training.reproducible == config::Reproducible::kWorldSize,
                       .copies = run_.mesh->shape().model,
                       .stop_requested = [this] { return run_.stop_is_requested(); }});
  run_.summary.stopped = !finished.has_value();
  if (!finished) return false;
  const Validation& validation = *finished;
  run_.summary.validation_loss = validation.loss;
  const bool best = history_.add(step, best_metric_value(config.evaluation.best_metric.value(), validation,
                                                         run_.position.loss, run_.position.grad_norm));
  line_ = validation_line(step, validation);
  run_.faults.at(FaultPlace::kValidation, step);
  if (run_.is_first_rank()) report(validation, best);
  // A run that skips what is not finite has sound weights, and goes on.
  if (!config.training.skip_nonfinite) require_finite(validation, concat("validation at step ", step));
  return best;
}

void RunValidation::report(const Validation& validation, bool best) {
  std::string compared;
  if (!best && history_.best()) {
    const auto& metric = run_.config.evaluation.best_metric;
    const bool by_loss = metric == config::BestMetric::kValidationLoss;
    compared = concat("; the best ", by_loss ? "" : words_of(metric) + " ", "is ",
                      util::fixed(history_.best()->value, 4), " of step ", history_.best()->step);
  }
  run_.log(concat("validation at step ", run_.position.step, ": ", validation_text(validation), compared));
  metrics_->write_validation(line_);
}

}  // namespace fsdp::train
