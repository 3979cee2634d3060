#include "run/train/run_metrics.h"

#include "base/device/cuda.h"
#include "base/util/system.h"
#include "model/kernels/matmul.h"
#include "state/groups/learning_rate.h"

namespace fsdp::train {

void RunMetrics::open(bool validates_again) {
  file_.emplace(
      run_.output_folder(),
      KeptMetrics{.resumed_step = run_.position.step, .validates_again = validates_again},
      MetricsFormats{.csv = run_.config.logging.csv, .tensorboard = run_.config.logging.tensorboard});
}

void RunMetrics::write_what_is_missing(const nlohmann::ordered_json& validation_line) {
  const RunPosition& position = run_.position;
  const bool is_reported = run_.is_complete() || run_.is_due(run_.config.logging.interval_steps);
  if (is_reported && !file_->ends_with(position.step, "loss")) {
    file_->write({.step = position.step,
                  .loss = position.loss,
                  .grad_norm = position.grad_norm,
                  .lr = optim::lr_at(run_.config.optimizer, run_.config.lr_scheduler, position.step,
                                     run_.config.training.steps),
                  .tokens = position.tokens_seen,
                  .skipped_steps = run_.skipped_steps()});
  }
  const bool is_validated = !validation_line.is_null() && validation_line.at("step") == position.step;
  if (is_validated && !file_->ends_with(position.step, "validation_loss")) write_validation(validation_line);
}

void RunMetrics::flush() {
  comm::agree(*run_.communicator, "metrics", [&] {
    if (file_) file_->finish();
  });
}

void RunMetrics::end_step(ObservedStep& step) {
  if (!run_.is_complete() && !step.ends_run && !run_.is_due(run_.config.logging.interval_steps)) return;
  compare_ranks();
  if (run_.is_first_rank()) report(step);
}

void RunMetrics::compare_ranks() {
  if (!paces_) return;
  for (const auto& [warns, text] : paces_->compare(run_.position.step)) {
    if (run_.is_first_rank()) run_.log(text, warns);
  }
}

void RunMetrics::report(const ObservedStep& step) {
  const at::Device device = run_.communicator->device();
  const StepMeter::Reading reading = run_.meter.read(run_.position.step, run_.position.tokens_seen);
  StepMetrics metrics{.step = run_.position.step,
                      .loss = step.result.loss,
                      .grad_norm = step.result.grad_norm,
                      .lr = step.position.lr,
                      .tokens = run_.position.tokens_seen,
                      .tokens_per_second = reading.tokens_per_second,
                      .step_seconds = reading.step_seconds,
                      .peak_memory_bytes = util::peak_resident_bytes(),
                      .minor_faults = util::minor_faults()};
  if (device.is_cuda()) metrics.gpu = util::cuda_memory(device.index());
  // Not on a GPU, which has no memory to spare in the middle of a run.
  const auto measure_again = [&] {
    return device.is_cpu() ? measured_matmul_rate(run_.config.mixed_precision.param_dtype,
                                                  kernels::matmul_by_name(run_.config.training.matmul.name()))
                           : 0.0;
  };
  const double tokens_per_second = reading.tokens_per_second / run_.communicator->world_size();
  metrics.hfu = utilisation(run_.peak, tokens_per_second * run_.flops.hardware, measure_again);
  metrics.mfu = tokens_per_second * run_.flops.model / run_.peak.flops_per_second;
  metrics.peak_tflops = run_.peak.flops_per_second / 1e12;
  metrics.data_wait_seconds = batches_.take_seconds() / static_cast<double>(reading.steps);
  if (run_.parts.scaler) metrics.loss_scale = run_.parts.scaler->scale();
  metrics.skipped_steps = run_.skipped_steps();
  if (paces_ && paces_->compared() != nullptr) {
    metrics.slowest = paces_->compared()->slowest();
    metrics.slow = paces_->compared()->slowest_named();
  }
  file_->write(metrics);
  run_.progress.show(metrics);
}

}  // namespace fsdp::train
