#include "run/train/run_metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/device/cuda.h"
#include "base/util/system.h"
#include "model/families/architectures.h"
#include "model/families/families.h"
#include "model/kernels/matmul.h"
#include "run/train/local_steps.h"
#include "state/groups/learning_rate.h"

namespace fsdp::train {
namespace {

/// Whether the loss of training is the cross entropy alone.
bool is_cross_entropy(const config::Config& config) {
  return config.training.objective == nn::kLanguageModel && config.training.loss == nn::kCrossEntropy &&
         config.training.label_smoothing == 0 && config.training.z_loss == 0 &&
         nn::aux_loss_coef(config.model) == 0;
}

}  // namespace

void RunMetrics::open(bool validates_again) {
  std::vector<std::string> columns;
  for (const std::string& name : run_.parts.objective->metric_names()) {
    columns.push_back(name);
    columns.push_back("validation_" + name);
  }
  if (run_.parts.outer) std::ranges::move(LocalSteps::metric_names(), std::back_inserter(columns));
  file_.emplace(run_.output_folder(),
                KeptMetrics{.resumed_step = run_.position.step, .validates_again = validates_again},
                MetricsFormats{.csv = run_.config.logging.csv,
                               .columns = columns,
                               .tensorboard = run_.config.logging.tensorboard});
}

void RunMetrics::write_what_is_missing(const nlohmann::ordered_json& validation_line) {
  const RunPosition& position = run_.position;
  const bool is_reported = run_.is_complete() || run_.is_due(run_.config.logging.interval_steps);
  if (is_reported && !file_->ends_with(position.step, "loss")) {
    file_->write({.step = position.step,
                  .loss = run_.mean_loss(),
                  .grad_norm = position.grad_norm,
                  .lr = optim::lr_at(run_.config.optimizer, run_.config.lr_scheduler, position.step,
                                     run_.config.training.steps),
                  .tokens = position.tokens_seen,
                  .skipped_steps = run_.skipped_steps(),
                  .last_loss = run_.last_loss()});
  }
  if (!validation_line.is_null()) last_validation_ = validation_line;
  const bool is_validated = !validation_line.is_null() && validation_line.at("step") == position.step;
  if (is_validated && !file_->ends_with(position.step, "validation_loss")) write_validation(validation_line);
}

void RunMetrics::write_validation(const nlohmann::ordered_json& line) {
  file_->write_validation(line);
  last_validation_.is_null() ? void(last_validation_ = line) : last_validation_.update(line);
}

void RunMetrics::flush() {
  comm::agree(*run_.communicator, "metrics", [&] {
    if (file_) file_->finish();
  });
}

void RunMetrics::end_step(ObservedStep& step) {
  const bool is_reported =
      run_.is_complete() || step.ends_run || run_.is_due(run_.config.logging.interval_steps);
  for (auto& [name, number] : step.numbers) {
    std::erase_if(of_observers_, [&name = name](const auto& other) { return other.first == name; });
    of_observers_.emplace_back(name, number);
  }
  NamedNumbers numbers;
  if (is_reported) {
    compare_ranks();
    numbers = run_.parts.objective->take_metrics();
    std::ranges::move(std::exchange(of_observers_, {}), std::back_inserter(numbers));
  }
  if (!run_.is_first_rank()) return;
  is_reported ? report(step, std::move(numbers)) : show_first_steps();
}

void RunMetrics::show_first_steps() {
  if (last_line_) return;
  const int64_t step = run_.position.step, interval = run_.config.logging.interval_steps;
  const double step_seconds = run_.meter.peek(step, run_.position.tokens_seen).step_seconds;
  TimeLeft time_left = run_.time_left;
  time_left.add_steps(1, step_seconds);
  run_.progress.show_unlogged(step, step_seconds, time_left.seconds_after(step).value(),
                              std::min((step / interval + 1) * interval, run_.config.training.steps));
}

void RunMetrics::compare_ranks() {
  if (!paces_) return;
  for (const auto& [warns, text] : paces_->compare(run_.position.step)) {
    if (run_.is_first_rank()) run_.log(text, warns);
  }
}

void RunMetrics::report(const ObservedStep& step, NamedNumbers of_objective) {
  const at::Device device = run_.communicator->device();
  const StepMeter::Reading reading = run_.meter.read(run_.position.step, run_.position.tokens_seen);
  StepMetrics metrics{.step = run_.position.step,
                      .loss = run_.mean_loss(),
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
  metrics.last_loss = run_.last_loss();
  metrics.of_objective = std::move(of_objective);
  metrics.is_cross_entropy = is_cross_entropy(run_.config);
  run_.time_left.add_steps(reading.steps, static_cast<double>(reading.steps) * reading.step_seconds);
  metrics.eta_seconds = run_.time_left.seconds_after(run_.position.step);
  file_->write(metrics);
  run_.progress.show(metrics);
  last_line_ = std::move(metrics);
}

}  // namespace fsdp::train
