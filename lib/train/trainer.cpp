#include "train/trainer.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "checkpoint/folders.h"
#include "config/checks.h"
#include "config/global_batch.h"
#include "config/load.h"
#include "config/print.h"
#include "kernels/matmul.h"
#include "optim/schedule.h"
#include "plan/recorded_pass.h"
#include "shard/engine_sizes.h"
#include "shard/rank_checks.h"
#include "shard/root_unit.h"
#include "train/layer_modes.h"
#include "train/run_start.h"
#include "train/step_profile.h"
#include "util/clock.h"
#include "util/cuda.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"
#include "util/start_clock.h"
#include "util/system.h"
#include "util/text.h"

namespace fsdp::train {
namespace fs = std::filesystem;

Trainer::Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                 ProgressOutput progress, RunHooks hooks)
    : config_(config),
      given_micro_steps_(config.training.gradient_accumulation_steps),
      given_rows_(config.data.micro_batch_size),
      communicator_(std::move(communicator)),
      validations_(config.evaluation),
      progress_(progress, config.training.steps),
      hooks_(std::move(hooks)),
      faults_(FaultInjection::from_environment(communicator_->rank())) {
  if (config_.logging.trace_communication) {
    trace_ = std::make_shared<comm::Trace>();
    communicator_ = comm::make_tracing_communicator(communicator_, trace_);
  }
  util::start_phase("comparison of the ranks' configs");
  require_same_run(config_, *communicator_);
  util::start_phase("data");
  comm::agree(*communicator_, "set-up", [&] {
    config::check_world(config_, communicator_->world_size());
    config::resolve_batch(config_, communicator_->world_size());
    if (config_.logging.memory_snapshot) {  // before the shards are made, which the history then has too
      require_gpu("logging.memory_snapshot", communicator_->device());
      util::record_cuda_memory_history(communicator_->device().index(), memory_snapshot());
    }
    open_data();
  });
  mesh_.emplace(config_.mesh, communicator_);
  parts_ = build_run_parts(config_, *mesh_, trace_);
  util::start_phase("data");
  comm::agree(*communicator_, "prefetching", [&] {
    prefetch_.emplace(*loader_, prefetch_options(config_, *mesh_));
    batches_.emplace(*prefetch_);
  });
  faults_.attach_to(*parts_.model, *communicator_, position_.step);
  nlohmann::json data;
  comm::agree(*communicator_, "identity of the data", [&] {
    if (is_first_rank()) data = data_record(*loader_, validation_loader_ ? &*validation_loader_ : nullptr);
  });
  util::start_phase("checkpoints");
  checkpointer_ = std::make_unique<Checkpointer>(
      config_,
      TrainingState{*parts_.engine, *parts_.optimizer, parts_.scaler ? &*parts_.scaler : nullptr,
                    parts_.guard ? &*parts_.guard : nullptr, validation_loader_ ? &validations_ : nullptr,
                    std::move(data)},
      *communicator_,
      Checkpointer::Hooks{.before_speaking = [this] { progress_.finish_line(); },
                          .in_the_middle = [this](int64_t step) { faults_.at(FaultPlace::kWrite, step); }});
  position_ = checkpointer_->restore();
  report_batch_change();
  util::start_phase("comparison of replicas");
  shard::require_equal_replicas(*parts_.engine, "before the first step");
  util::start_phase("rate of matrix products");
  peak_ = find_peak_rate(config_, *communicator_);
  util::start_phase("count of operations");
  flops_ =
      plan::flops_a_token(config_.model, config_.data.sequence_length, parts_.checkpointing, config_.lora);
  paces_ = RankPaces::make(config_, communicator_, *batches_, flops_.model);
  util::start_phase("output folder and log");
  comm::agree(*communicator_, "output folder", [&] {
    if (config_.training.epochs > 0 && position_.step > 0) count_steps();  // of what is left
    prepare_output();
  });
  if (trace_) {
    comm::agree(*communicator_, "trace files", [&] {
      trace_->open(output_folder() / util::concat("trace.rank", communicator_->rank(), ".jsonl"));
    });
  }
  if (!is_first_rank()) return;
  for (const std::string& warning :
       {optim::cut_of_schedule(config_.lr_scheduler, config_.training.steps),
        shard::blocks_in_root(shard::unit_sizes(*parts_.engine)).text(config_.fsdp.min_num_params)}) {
    if (!warning.empty()) util::log_warning(warning);
  }
  util::log_info(banner(config_, parts_, *loader_, peak_));
}

/// The effect on the loss is for the user to judge, who may not know of the change: with another number of
/// ranks it comes by itself.
void Trainer::report_batch_change() {
  const int64_t before = position_.samples_per_step, now = loader_->samples_per_step();
  position_.samples_per_step = now;
  if (before == 0 || before == now || !is_first_rank()) return;
  const bool by_tokens = config_.data.max_tokens > 0;
  util::log_info(util::concat("the global batch is ", now, by_tokens ? " batches" : " samples",
                              " per step from here on (", mesh_->shape().row_ranks(), " ranks x ",
                              by_tokens ? "" : util::concat(config_.data.micro_batch_size, " x "),
                              config_.training.gradient_accumulation_steps, " micro-batches); it was ",
                              before, " up to step ", position_.step,
                              "; training.global_batch_size = ", before, " keeps it"));
}

config::Config Trainer::config_as_given() const {
  config::Config config = config_;
  config.training.gradient_accumulation_steps = given_micro_steps_;
  config.data.micro_batch_size = given_rows_;
  return config;
}

void Trainer::open_data() {
  loader_.emplace(open_training_data(config_, *communicator_));
  if (config_.training.epochs > 0) count_steps();
  if (config_.logging.sample_every > 0) sample_text_ = std::make_unique<SampleText>(config_);
  if (config_.data.validation.empty()) return;
  validation_loader_.emplace(open_validation_data(config_, *communicator_));
  token_bytes_ = token_bytes(config_, is_first_rank());
  if (!token_bytes_ && config_.evaluation.best_metric == config::BestMetric::kValidationBitsPerByte) {
    util::fail(
        util::ErrorKind::kUsage,
        "evaluation.best_metric: expected another metric than validation_bits_per_byte, because the bytes "
        "of tokens are not known; correct data.tokenizer or choose another metric");
  }
}

void Trainer::count_steps() {
  int64_t& steps = config_.training.steps;
  steps = steps_of_epochs(config_.training, *loader_, position_);
  progress_.set_total_steps(steps);
  config::Config counted = config_;
  counted.training.epochs = 0;
  for (const config::Conflict& conflict : config::find_conflicts(counted)) {
    util::fail(util::ErrorKind::kUsage, "training.epochs = ", config_.training.epochs, " means ", steps,
               " steps here; ", conflict.message);
  }
}

/// Refuses a folder with later steps of another run: this run's own would mix with them.
void Trainer::prepare_output() {
  if (!is_first_rank()) {
    util::make_writable_folder(output_folder());
    return;
  }
  auto found = checkpoint::find_checkpoints(output_folder());
  if (!found.complete.empty() && found.complete.back().step > position_.step) {
    util::fail(util::ErrorKind::kUsage, "run.output_dir ", output_folder().string(), " already contains ",
               found.complete.back().folder.filename().string(), ", later than step ", position_.step,
               " at which this run starts; choose another run.output_dir, remove it, or set "
               "checkpoint.resume to auto");
  }
  if (const fs::path& from = checkpointer_->resumed_from(); !from.empty()) {
    // Beside the checkpoint, which may lie in another run's folder.
    fs::path resolved = fs::absolute(from).parent_path() / "config.toml";
    if (fs::exists(resolved)) report_changes_since(resolved);
  }
  checkpointer_->remember_model();
  util::write_file_atomically(output_folder() / "config.toml", config::to_toml(config_as_given()));
  util::write_file_atomically(output_folder() / "environment.json",
                              run_environment(*communicator_, peak_).dump(2) + "\n");
  metrics_.emplace(output_folder(),
                   KeptMetrics{.resumed_step = position_.step, .validates_again = validation_is_due()},
                   MetricsFormats{.csv = config_.logging.csv, .tensorboard = config_.logging.tensorboard});
}

void Trainer::report_changes_since(const fs::path& resolved) const {
  try {
    for (const std::string& change :
         config::differing_keys(config::load_resolved_config(resolved), config_as_given())) {
      util::log_info("config differs from the run so far: " + change);
    }
  } catch (const util::Error& error) {
    util::log_warning(util::concat("cannot compare with ", resolved.string(), ": ", error.what()));
  }
}

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
  checkpointer_->end_of_training();
  const checkpoint::CheckpointOptions& options = config_.checkpoint;
  const bool save = options.save_at_end || ((summary_.stopped || out_of_time_) && options.interval_steps > 0);
  save_if(save && checkpointer_->saved_step() != position_.step, /*best=*/false);
  checkpointer_->finish();
  if (checkpointer_->wants_save()) {
    save_if(/*due=*/true, /*best=*/false);
    checkpointer_->finish();
  }
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
  if (position_.step >= steps && is_first_rank()) {
    util::log_info(util::concat(
        "nothing to train: the checkpoint is at step ", position_.step, ", training.steps is ", steps,
        "; raise training.steps (or training.epochs) to go on, or set another run.output_dir to begin anew"));
  }
  seconds_before_ = position_.training_seconds;
  training_began_ = std::chrono::steady_clock::now();
  const double limit_seconds = config_.training.stop_after_hours * 3600;
  out_of_time_ = limit_seconds > 0 && position_.step < steps && seconds_before_ >= limit_seconds;
  // A run that was stopped in a step with a validation has left the validation to this one.
  if (validation_is_due()) save_if(/*due=*/false, validate());
  summary_.ended_early = out_of_time_ || (position_.step < steps && validations_.patience_is_over());
  TrainStep train_step = make_train_step(config_, parts_, *batches_, [this] {
    return (hooks_.stop_requested && hooks_.stop_requested()) || time_is_over();
  });
  int64_t& step = position_.step;
  int64_t &samples_seen = position_.samples_seen, &tokens_seen = position_.tokens_seen;
  const auto due = [](int64_t interval_steps, int64_t at_step) {
    return interval_steps > 0 && at_step % interval_steps == 0;
  };

  StepProfile profile(output_folder(), communicator_->rank(), config_.logging.profile_steps,
                      communicator_->device());
  const NvtxRanges nvtx(config_.logging.nvtx, communicator_->device());
  meter_.start(step, tokens_seen);
  util::start_phase("first step");
  while (step < steps && !summary_.stopped && !summary_.ended_early) {
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
    StepResult result = train_step.run({.step = step + 1,
                                        .first_global_sample = samples_seen,
                                        .lr = lr,
                                        .samples = samples,
                                        .micro_batches = micro_batches,
                                        .reads_outcome = reads});
    if (paces_) paces_->end_step();
    util::end_start_record();
    profile.end_step();
    ++step;
    samples_seen += samples;
    tokens_seen += config_.data.max_tokens > 0 ? result.counted : samples * config_.data.sequence_length;
    const bool ends = result.stop && step < steps;
    if (ends) train_step.read_outcome(result);
    if (result.is_read) {
      summary_.loss = position_.loss = result.loss;
      position_.grad_norm = result.grad_norm;
    }
    out_of_time_ = ends && config_.training.stop_after_hours > 0 && !stop_is_requested();
    summary_.stopped = ends && !out_of_time_;
    summary_.ended_early = out_of_time_;
    if (result.skipped && is_first_rank()) {
      progress_.finish_line();
      util::log_warning(util::concat("step ", step, " was skipped: ", result.skip_reason));
    }
    if (step == steps || ends || due(config_.logging.interval_steps, step)) report(result, lr);
    if (ends) break;  // run() saves

    meter_.pause();
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
    meter_.go_on();
  }
  if (summary_.ended_early && is_first_rank()) report_early_end();
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
  faults_.at(FaultPlace::kSave, position_.step);
  progress_.begin("saving", position_.step);
  best ? checkpointer_->save_best(position_) : checkpointer_->save(position_);
}

void Trainer::compare_ranks() {
  if (!paces_) return;
  for (const auto& [warns, text] : paces_->compare(position_.step)) {
    if (!is_first_rank()) continue;
    progress_.finish_line();
    warns ? util::log_warning(text) : util::log_info(text);
  }
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
  if (parts_.scaler || parts_.guard) {
    metrics.skipped_steps = (parts_.scaler ? parts_.scaler->state().skipped_steps : 0) +
                            (parts_.guard ? parts_.guard->skipped() : 0);
  }
  if (paces_ && paces_->compared() != nullptr) {
    metrics.slowest = paces_->compared()->slowest();
    metrics.slow = paces_->compared()->slowest_named();
  }
  metrics_->write(metrics);
  progress_.show(metrics);
}

bool Trainer::stop_is_requested() {
  at::Tensor requested = at::full({1}, hooks_.stop_requested && hooks_.stop_requested() ? 1 : 0, at::kLong);
  communicator_->all_reduce(requested, comm::ReduceOp::kMax, {.unit = "request to stop"})->wait();
  return requested.item<int64_t>() != 0;
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
  if (!is_first_rank()) return best;
  progress_.finish_line();
  std::string compared;
  if (!best && validations_.best()) {
    const bool by_loss = metric == config::BestMetric::kValidationLoss;
    compared =
        util::concat("; the best ", by_loss ? "" : words_of(metric) + " ", "is ",
                     util::fixed(validations_.best()->value, 4), " of step ", validations_.best()->step);
  }
  util::log_info(
      util::concat("validation at step ", position_.step, ": ", validation_text(validation), compared));
  metrics_->write_validation(position_.step, validation);
  return best;
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
