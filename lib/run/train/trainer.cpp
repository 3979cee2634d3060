#include "run/train/trainer.h"

#include <c10/util/Exception.h>

#include <bit>
#include <cmath>

#include "base/device/cuda.h"
#include "base/util/clock.h"
#include "base/util/error.h"
#include "base/util/library_pages.h"
#include "base/util/log.h"
#include "base/util/start_clock.h"
#include "base/util/system.h"
#include "base/util/text.h"
#include "model/kernels/matmul.h"
#include "run/train/layer_modes.h"
#include "run/train/reproducible_step.h"
#include "run/train/step_profile.h"
#include "shard/engine/rank_checks.h"
#include "state/groups/learning_rate.h"

namespace fsdp::train {
namespace fs = std::filesystem;

RunSummary Trainer::run() {
  try {
    train();
  } catch (const c10::OutOfMemoryError&) {
    report_out_of_memory();
  } catch (const c10::Error& error) {
    explain_nondeterminism(error);
    throw;
  } catch (const util::Error& error) {
    // Such an error is thrown on every rank, so they can still finish a save that is under way.
    bool on_every_rank = dynamic_cast<const comm::AgreedError*>(&error) != nullptr ||
                         error.kind() == util::ErrorKind::kDiverged;
    if (on_every_rank) checkpointer_->finish();
    throw;
  }
  progress_.finish_line();
  checkpointer_->finish();
  if (summary_.left) return summary_;
  checkpointer_->end_of_training();
  const checkpoint::CheckpointOptions& options = config_.checkpoint;
  const bool save = options.save_at_end || ((summary_.stopped || out_of_time_) && options.interval_steps > 0);
  save_if(save && checkpointer_->saved_step() != position_.step, /*best=*/false);
  checkpointer_->finish();
  if (checkpointer_->wants_save()) {
    save_if(/*due=*/true, /*best=*/false);
    checkpointer_->finish();
  }
  finish_metrics();
  communicator_->barrier({.unit = "end of the run"});
  checkpointer_->require_last_save();
  progress_.finish_line();
  if (parts_.graphs && is_first_rank()) util::log_info(describe(*parts_.graphs));
  summary_.step = position_.step;
  summary_.best = validations_.best();
  summary_.last_checkpoint = checkpointer_->last_saved();
  return summary_;
}

std::filesystem::path Trainer::memory_snapshot() const {
  return output_folder() / util::concat("memory.rank", communicator_->rank(), ".pickle");
}

/// Of the device; out of host memory, the system kills the process.
void Trainer::report_out_of_memory() const {
  std::string found, advice;
  if (const at::Device device = communicator_->device(); device.is_cuda()) {
    const util::CudaMemory memory = util::cuda_memory(device.index());
    found = util::concat(": tensors have ", util::human_bytes(memory.allocated_bytes),
                         ", the allocator holds ", util::human_bytes(memory.reserved_bytes), " of ",
                         util::human_bytes(util::cuda_device(device.index()).memory_bytes), " of ",
                         device.str(), ", and NCCL, the CUDA context and other processes ",
                         util::human_bytes(util::cuda_bytes_in_use(device.index()) - memory.reserved_bytes));
  }
  std::error_code ignored;
  if (config_.logging.memory_snapshot && fs::exists(memory_snapshot(), ignored)) {
    advice = util::concat(memory_snapshot().string(),
                          " shows what held the memory (open it in https://docs.pytorch.org/memory_viz)");
  } else {
    advice = "logging.memory_snapshot = true would record what held the memory";
  }
  util::fail(util::ErrorKind::kUnexpected, "the device is out of memory in step ", position_.step + 1, found,
             "; it has no room for a micro-batch of ", config_.data.micro_batch_size,
             " sequences: lower data.micro_batch_size (and raise training.gradient_accumulation_steps), "
             "set activation_checkpointing.mode to full, or fsdp.cpu_offload to true; "
             "fsdp-plan computes what each saves, and ",
             advice);
}

void Trainer::train() {
  const int64_t steps = config_.training.steps;
  if (position_.step >= steps && is_first_rank() && !continues()) {
    util::log_info(util::concat(
        "nothing to train: the checkpoint is at step ", position_.step, ", training.steps is ", steps,
        "; raise training.steps (or training.epochs) to go on, or set another run.output_dir to begin anew"));
  }
  seconds_before_ = position_.training_seconds;
  training_began_ = std::chrono::steady_clock::now();
  const double limit_seconds = config_.training.stop_after_hours * 3600;
  out_of_time_ = limit_seconds > 0 && position_.step < steps && seconds_before_ >= limit_seconds;
  int64_t& step = position_.step;
  int64_t& samples_seen = position_.samples_seen;
  const auto due = [](int64_t interval_steps, int64_t at_step) {
    return interval_steps > 0 && at_step % interval_steps == 0;
  };
  const int64_t first_step = step + 1;
  if (continues() && step > 0 && !std::isnan(position_.loss)) summary_.loss = position_.loss;
  // A run that was stopped in a step with a validation has left the validation to this one, and a rank that
  // was lost its save and the mark of the best.
  const bool was_best = continues() && step > 0 && validations_.best() && validations_.best()->step == step;
  const bool best_at_start = validation_is_due() ? validate() : was_best;
  const bool saves_at_start = continues() && step > 0 && due(config_.checkpoint.interval_steps, step) &&
                              checkpointer_->saved_step() != step;
  save_if(saves_at_start, best_at_start);
  summary_.ended_early = out_of_time_ || (position_.step < steps && validations_.patience_is_over());
  train_step_ = make_train_step(
      config_, parts_, *batches_,
      [this] { return (hooks_.stop_requested && hooks_.stop_requested()) || time_is_over(); },
      hooks_.epoch ? hooks_.epoch->change_is_due : nullptr);
  if (begun_) continued_step()->continue_with(*std::exchange(begun_, std::nullopt));
  StepProfile profile(output_folder(), communicator_->rank(), config_.logging.profile_steps,
                      communicator_->device());
  const NvtxRanges nvtx(config_.logging.nvtx, communicator_->device());
  meter_.start(step, position_.tokens_seen);
  // Once before memory is at its peak, once for what the first step alone uses.
  const auto unmap_what_starts = [this] {
    if (!continues()) util::unmap_library_pages();
  };
  unmap_what_starts();
  util::start_phase("first step");
  while (step < steps && !summary_.stopped && !summary_.ended_early && !summary_.left) {
    if (hooks_.activity) hooks_.activity->begin_step(step + 1);
    if (paces_) paces_->begin_step();
    faults_.at(FaultPlace::kStep, step + 1);
    if (trace_) trace_->begin_step(step + 1);
    double lr = optim::lr_at(config_.optimizer, config_.lr_scheduler, step + 1, steps);
    const int64_t micro_batches = micro_steps_of(config_.training, step + 1);
    const int64_t samples = loader_->samples_per_micro_step() * micro_batches;
    profile.begin_step(step + 1);
    progress_.begin(util::concat("step ", step + 1), step);
    const bool reads = step + 1 == steps || due(config_.logging.interval_steps, step + 1) ||
                       due(config_.checkpoint.interval_steps, step + 1) ||
                       due(config_.evaluation.interval_steps, step + 1) || checkpointer_->wants_save();
    StepResult result = train_step_->run({.step = step + 1,
                                          .first_global_sample = samples_seen,
                                          .lr = lr,
                                          .samples = samples,
                                          .micro_batches = micro_batches,
                                          .reads_outcome = reads});
    if (paces_) paces_->end_step();
    util::end_start_record();
    profile.end_step();
    const bool ends = result.stop && step + 1 < steps;
    if (ends) train_step_->read_outcome(result);
    count_step(result, samples);
    out_of_time_ = ends && config_.training.stop_after_hours > 0 && !stop_is_requested();
    summary_.stopped = ends && !out_of_time_;
    summary_.ended_early = out_of_time_;
    report_skip(result);
    if (step == steps || ends || due(config_.logging.interval_steps, step)) report(result, lr);
    if (ends) break;  // run() saves

    meter_.pause();
    if (step == first_step) unmap_what_starts();
    if (due(config_.fsdp.replica_check_interval, step)) {
      shard::require_equal_replicas(*parts_.engine, util::concat("after step ", step));
    }
    const bool validates = validation_is_due(), samples_text = due(config_.logging.sample_every, step);
    const bool best = validates && validate();
    if (samples_text && !summary_.stopped) show_sample();
    save_if(due(config_.checkpoint.interval_steps, step), best);
    // Both may take longer than a launcher waits, and the next step checks only at its end.
    if ((validates || samples_text) && !summary_.stopped && step < steps)
      summary_.stopped = stop_is_requested();
    summary_.ended_early = step < steps && validations_.patience_is_over();
    summary_.left = result.leave && step < steps && !summary_.stopped && !summary_.ended_early;
    meter_.go_on();
  }
  if (summary_.ended_early && is_first_rank()) report_early_end();
}

void Trainer::count_step(const StepResult& result, int64_t samples) {
  ++position_.step;
  position_.samples_seen += samples;
  position_.tokens_seen +=
      data::counts_vary(config_.data) ? result.tokens : samples * config_.data.sequence_length;
  if (result.without_targets) ++position_.steps_without_targets;
  if (!result.is_read) return;
  position_.loss = result.loss;
  position_.grad_norm = result.grad_norm;
  if (!result.without_targets) summary_.loss = result.loss;
}

/// Of steps without targets, which may be many, fewer and fewer are reported.
void Trainer::report_skip(const StepResult& result) {
  if (!result.skipped || !is_first_rank()) return;
  const int64_t without_targets = position_.steps_without_targets;
  if (result.without_targets && !std::has_single_bit(static_cast<uint64_t>(without_targets))) return;
  progress_.finish_line();
  std::string text = util::concat("step ", position_.step, " was skipped: ", result.skip_reason);
  if (result.without_targets) {
    text += util::concat(" (", without_targets, without_targets == 1 ? " such step" : " such steps",
                         " so far); raise data.sequence_length or the batch, or check data.train_on");
  }
  util::log_warning(text);
}

double Trainer::training_seconds() const { return seconds_before_ + util::seconds_since(training_began_); }

bool Trainer::time_is_over() const {
  const double hours = config_.training.stop_after_hours;
  return hours > 0 && training_seconds() >= hours * 3600;
}

void Trainer::report_early_end() {
  progress_.finish_line();
  const std::string reason =
      out_of_time_
          ? util::concat("it has trained for ", util::fixed(training_seconds() / 3600, 2),
                         " hours, and training.stop_after_hours is ", config_.training.stop_after_hours)
          : util::concat("its last ", validations_.not_better_in_a_row(),
                         " validations were not better than the best before, and evaluation.patience is ",
                         config_.evaluation.patience);
  util::log_info(
      util::concat("the run ends at step ", position_.step, " of ", config_.training.steps, ": ", reason));
}

void Trainer::save_if(bool due, bool best) {
  best = best && config_.checkpoint.keep_best;
  due = due || checkpointer_->wants_save();
  if (!due && !best) return checkpointer_->poll();
  position_.training_seconds = training_seconds();
  finish_metrics();
  faults_.at(FaultPlace::kSave, position_.step);
  progress_.begin("saving", position_.step);
  best ? checkpointer_->save_best(position_) : checkpointer_->save(position_);
}

/// A checkpoint is not older than the metrics of its step, which a run that resumes from it keeps.
void Trainer::finish_metrics() {
  comm::agree(*communicator_, "metrics", [&] {
    if (metrics_) metrics_->finish();
  });
}

void Trainer::compare_ranks() {
  if (!paces_) return;
  for (const auto& [warns, text] : paces_->compare(position_.step)) {
    if (!is_first_rank()) continue;
    progress_.finish_line();
    warns ? util::log_warning(text) : util::log_info(text);
  }
}

std::optional<int64_t> Trainer::skipped_steps() const {
  if (!parts_.scaler && !parts_.guard && position_.steps_without_targets == 0) return std::nullopt;
  return position_.steps_without_targets + (parts_.scaler ? parts_.scaler->state().skipped_steps : 0) +
         (parts_.guard ? parts_.guard->skipped() : 0);
}

void Trainer::report(const StepResult& result, double lr) {
  compare_ranks();
  if (!is_first_rank()) return;
  StepMeter::Reading reading = meter_.read(position_.step, position_.tokens_seen);
  StepMetrics metrics{.step = position_.step,
                      .loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .lr = lr,
                      .tokens = position_.tokens_seen,
                      .tokens_per_second = reading.tokens_per_second,
                      .step_seconds = reading.step_seconds,
                      .peak_memory_bytes = util::peak_resident_bytes(),
                      .minor_faults = util::minor_faults()};
  if (communicator_->device().is_cuda()) metrics.gpu = util::cuda_memory(communicator_->device().index());
  // Not on a GPU, which has no memory to spare in the middle of a run.
  const auto measure_again = [&] {
    return communicator_->device().is_cpu()
               ? measured_matmul_rate(config_.mixed_precision.param_dtype,
                                      kernels::matmul_by_name(config_.training.matmul.name()))
               : 0.0;
  };
  const double tokens_per_second = reading.tokens_per_second / communicator_->world_size();
  metrics.hfu = utilisation(peak_, tokens_per_second * flops_.hardware, measure_again);
  metrics.mfu = tokens_per_second * flops_.model / peak_.flops_per_second;
  metrics.peak_tflops = peak_.flops_per_second / 1e12;
  metrics.data_wait_seconds = batches_->take_seconds() / static_cast<double>(reading.steps);
  if (parts_.scaler) metrics.loss_scale = parts_.scaler->scale();
  metrics.skipped_steps = skipped_steps();
  if (paces_ && paces_->compared() != nullptr) {
    metrics.slowest = paces_->compared()->slowest();
    metrics.slow = paces_->compared()->slowest_named();
  }
  metrics_->write(metrics);
  progress_.show(metrics);
}

bool Trainer::stop_is_requested() {
  return requested_on_any_rank(*communicator_, {hooks_.stop_requested && hooks_.stop_requested()}).front();
}

bool Trainer::validation_is_due() const {
  const int64_t step = position_.step, interval = config_.evaluation.interval_steps;
  if (!validation_loader_ || step == 0 || validations_.validated_at() == step) return false;
  return step >= config_.training.steps || (interval > 0 && step % interval == 0);
}

bool Trainer::validate() {
  progress_.begin("validation", position_.step);
  const auto finished =
      train::validate(*parts_.model, *validation_loader_, *communicator_,
                      {.bytes = token_bytes_.get(),
                       .accuracy = config_.evaluation.accuracy,
                       .prefetch = prefetch_options(config_, *mesh_),
                       .cut = parts_.cut,
                       .by_sample = config_.training.reproducible == config::Reproducible::kWorldSize,
                       .copies = mesh_->shape().model,
                       .stop_requested = [this] { return stop_is_requested(); }});
  summary_.stopped = !finished.has_value();
  if (!finished) return false;
  const Validation& validation = *finished;
  summary_.validation_loss = validation.loss;
  const auto& metric = config_.evaluation.best_metric;
  const bool best = validations_.add(
      position_.step, best_metric_value(metric.value(), validation, position_.loss, position_.grad_norm));
  validation_line_ = validation_line(position_.step, validation);
  faults_.at(FaultPlace::kValidation, position_.step);
  if (is_first_rank()) report_validation(validation, best);
  // A run that skips what is not finite has sound weights, and goes on.
  if (!config_.training.skip_nonfinite) {
    require_finite(validation, util::concat("validation at step ", position_.step));
  }
  return best;
}

void Trainer::report_validation(const Validation& validation, bool best) {
  progress_.finish_line();
  std::string compared;
  if (!best && validations_.best()) {
    const auto& metric = config_.evaluation.best_metric;
    const bool by_loss = metric == config::BestMetric::kValidationLoss;
    compared =
        util::concat("; the best ", by_loss ? "" : words_of(metric) + " ", "is ",
                     util::fixed(validations_.best()->value, 4), " of step ", validations_.best()->step);
  }
  util::log_info(
      util::concat("validation at step ", position_.step, ": ", validation_text(validation), compared));
  metrics_->write_validation(validation_line_);
}

void Trainer::show_sample() {
  progress_.begin("sample", position_.step);
  const auto text = sample_text_->of(
      *parts_.model, *communicator_, [this] { return stop_is_requested(); },
      marks_whole_inputs(config_, *mesh_));
  summary_.stopped = !text.has_value();
  if (!is_first_rank() || !text) return;
  progress_.finish_line();
  util::log_info(util::concat("sample at step ", position_.step, ":\n", *text));
}

}  // namespace fsdp::train
