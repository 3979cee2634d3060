#include "train/trainer.h"

#include <cmath>

#include "checkpoint/folders.h"
#include "checkpoint/hugging_face_config.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "config/checks.h"
#include "config/load.h"
#include "config/print.h"
#include "optim/schedule.h"
#include "train/banner.h"
#include "train/evaluator.h"
#include "train/state_slices.h"
#include "util/error.h"
#include "util/file.h"
#include "util/log.h"
#include "util/process_memory.h"
#include "util/text.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

/// Units whose step count is not that of the run, because they had no gradient in some steps.
nlohmann::json uneven_step_counts(const optim::Optimizer& optimizer) {
  nlohmann::json counts = nlohmann::json::object();
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    int64_t count = optimizer.parameter_step_count(i);
    if (count != optimizer.step_count()) counts[optimizer.parameters()[i].name] = count;
  }
  return counts;
}

void restore_step_counts(optim::Optimizer& optimizer, const nlohmann::json& training) {
  optimizer.set_step_count(training.at("optimizer_steps").get<int64_t>());
  auto uneven = training.find("optimizer_steps_of_units");
  if (uneven == training.end()) return;
  size_t found = 0;
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    auto count = uneven->find(optimizer.parameters()[i].name);
    if (count == uneven->end()) continue;
    optimizer.set_parameter_step_count(i, count->get<int64_t>());
    ++found;
  }
  if (found == uneven->size()) return;
  util::log_warning(
      "some units of the checkpoint had fewer optimizer steps than others, and this run has other units: "
      "their step count is now that of the run");
}

}  // namespace

Trainer::Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                 ProgressOutput progress)
    : config_(config), communicator_(std::move(communicator)), progress_(progress, config.training.steps) {
  if (config_.logging.trace_communication) {
    trace_ = std::make_shared<comm::Trace>();
    communicator_ = comm::make_tracing_communicator(communicator_, trace_);
  }
  comm::agree(*communicator_, "set-up", [&] {
    config::check_world(config_, communicator_->world_size());
    open_data();
    parts_ = build_run_parts(config_, communicator_, trace_);
  });
  resume();
  comm::agree(*communicator_, "output folder", [&] { prepare_output(); });
  if (trace_) {
    comm::agree(*communicator_, "trace files", [&] {
      trace_->open(output_folder() / util::concat("trace.rank", communicator_->rank(), ".jsonl"));
    });
  }
  if (is_first_rank()) util::log_info(banner(config_, *parts_.engine, *loader_));
}

void Trainer::open_data() {
  loader_.emplace(open_training_data(config_, *communicator_));
  if (config_.data.validation.empty()) return;
  validation_loader_.emplace(config_.data, config_.model.vocab_size, config_.evaluation.max_samples,
                             placement(config_, *communicator_));
}

/// Rank 0 chooses the checkpoint, so that a file system that shows ranks different things cannot split the
/// run.
void Trainer::resume() {
  std::string chosen;
  comm::agree(*communicator_, "choice of a checkpoint", [&] {
    if (!is_first_rank()) return;
    checkpoint::ResumeChoice choice = checkpoint::resolve_resume(output_folder(), config_.checkpoint.resume);
    if (!choice.message.empty()) util::log_info(choice.message);
    if (choice.folder) chosen = choice.folder->string();
  });
  fs::path folder = comm::all_gather_text(*communicator_, chosen, {.unit = "choice of a checkpoint"}).front();
  if (folder.empty()) return;
  comm::agree(*communicator_, "loading the checkpoint", [&] {
    checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
    checkpoint::load_slices(folder, manifest,
                            state_slices(*parts_.engine, *parts_.optimizer, SlicePurpose::kLoad));
    restore_progress(manifest, folder);
  });
}

void Trainer::restore_progress(const checkpoint::Manifest& manifest, const fs::path& folder) {
  step_ = manifest.step;
  const auto& training = manifest.training;
  try {
    samples_seen_ = training.at("samples_seen").get<int64_t>();
    tokens_seen_ = training.at("tokens_seen").get<int64_t>();
    restore_step_counts(*parts_.optimizer, training);
    if (parts_.scaler && training.contains("loss_scaler")) {
      parts_.scaler->set_state(
          {.scale = training.at("loss_scaler").at("scale").get<double>(),
           .growth_tracker = training.at("loss_scaler").at("growth_tracker").get<int64_t>()});
    }
  } catch (const nlohmann::json::exception&) {
    util::fail(
        util::ErrorKind::kCheckpoint, folder.string(),
        "/manifest.json: expected samples_seen, tokens_seen and optimizer_steps under \"training\"; it was "
        "not written by fsdp-train; start from its weights with model.init_from instead");
  }
}

/// Refuses a folder that holds later steps of another run: they would be in the way of this run's own.
void Trainer::prepare_output() {
  if (!is_first_rank()) {
    util::make_writable_folder(output_folder());
    return;
  }
  auto found = checkpoint::find_checkpoints(output_folder());
  if (!found.complete.empty() && found.complete.back().step > step_) {
    util::fail(
        util::ErrorKind::kUsage, "run.output_dir ", output_folder().string(), " already holds ",
        found.complete.back().folder.filename().string(), ", later than step ", step_,
        " where this run starts; choose another run.output_dir, remove it, or set checkpoint.resume to auto");
  }
  util::make_writable_folder(output_folder());
  fs::path resolved = output_folder() / "config.toml";
  if (step_ > 0 && fs::exists(resolved)) report_changes_since(resolved);
  util::write_file_atomically(resolved, config::to_toml(config_));
  metrics_.emplace(output_folder(), step_);
}

void Trainer::report_changes_since(const fs::path& resolved) const {
  try {
    for (const std::string& change : config::differing_keys(config::load_config(resolved), config_)) {
      util::log_info("config differs from the run so far: " + change);
    }
  } catch (const util::Error& error) {
    util::log_warning(util::concat("cannot compare with ", resolved.string(), ": ", error.what()));
  }
}

RunSummary Trainer::run() {
  const int64_t steps = config_.training.steps;
  if (step_ >= steps && is_first_rank()) {
    util::log_info(
        util::concat("nothing to train: the checkpoint is at step ", step_, ", training.steps is ", steps));
  }
  TrainStep train_step = make_train_step(config_, parts_, *loader_);
  int64_t validated_at = -1, saved_at = step_;
  auto due = [&](int64_t interval_steps) { return interval_steps > 0 && step_ % interval_steps == 0; };

  meter_.start(step_, tokens_seen_);
  while (step_ < steps) {
    if (trace_) trace_->begin_step(step_ + 1);
    double lr = optim::lr_at(config_.optimizer, config_.lr_scheduler, step_ + 1, steps);
    StepResult result = train_step.run({.step = step_ + 1, .first_global_sample = samples_seen_, .lr = lr});
    ++step_;
    samples_seen_ += loader_->samples_per_step();
    tokens_seen_ += loader_->samples_per_step() * config_.data.sequence_length;
    summary_.loss = result.loss;
    if (result.skipped && is_first_rank()) {
      progress_.finish_line();
      util::log_warning(util::concat("step ", step_,
                                     " was skipped: its gradients overflow; the loss scale is now ",
                                     parts_.scaler->scale()));
    }
    if (step_ == steps || due(config_.logging.interval_steps)) report(result, lr);

    meter_.pause();
    if (validation_loader_ && due(config_.evaluation.interval_steps)) {
      validate();
      validated_at = step_;
    }
    if (due(config_.checkpoint.interval_steps)) {
      save();
      saved_at = step_;
    }
    meter_.go_on();
  }
  progress_.finish_line();
  if (validation_loader_ && validated_at != step_) validate();
  if (config_.checkpoint.save_at_end && saved_at != step_) save();
  communicator_->barrier({.unit = "end of the run"});
  summary_.step = step_;
  return summary_;
}

void Trainer::report(const StepResult& result, double lr) {
  if (!is_first_rank()) return;
  StepMeter::Reading reading = meter_.read(step_, tokens_seen_);
  StepMetrics metrics{.step = step_,
                      .loss = result.loss,
                      .grad_norm = result.grad_norm,
                      .lr = lr,
                      .tokens = tokens_seen_,
                      .tokens_per_second = reading.tokens_per_second,
                      .step_seconds = reading.step_seconds,
                      .peak_memory_bytes = util::peak_resident_bytes()};
  if (parts_.scaler) metrics.loss_scale = parts_.scaler->scale();
  metrics_->write(metrics);
  progress_.show(metrics);
}

void Trainer::validate() {
  double loss = validation_loss(*parts_.model, *validation_loader_, *communicator_);
  summary_.validation_loss = loss;
  if (!is_first_rank()) return;
  progress_.finish_line();
  util::log_info(util::concat("validation at step ", step_, ": loss ", util::fixed(loss, 4), ", perplexity ",
                              util::fixed(std::exp(loss), 2), " over ", validation_loader_->num_samples(),
                              " samples"));
  metrics_->write_validation(step_, loss);
}

void Trainer::save() {
  progress_.finish_line();
  checkpoint::SaveRequest request;
  request.root = output_folder();
  request.step = step_;
  request.layout = config_.fsdp.layout;
  request.training = {{"samples_seen", samples_seen_},
                      {"tokens_seen", tokens_seen_},
                      {"optimizer_steps", parts_.optimizer->step_count()},
                      {"seed", config_.run.seed},
                      {"optimizer", config_.optimizer.name}};
  if (auto uneven = uneven_step_counts(*parts_.optimizer); !uneven.empty()) {
    request.training["optimizer_steps_of_units"] = std::move(uneven);
  }
  if (parts_.scaler) {
    request.training["loss_scaler"] = {{"scale", parts_.scaler->state().scale},
                                       {"growth_tracker", parts_.scaler->state().growth_tracker}};
  }
  request.model = checkpoint::hugging_face_config(config_.model);
  checkpoint::save_sharded(request, state_slices(*parts_.engine, *parts_.optimizer, SlicePurpose::kSave),
                           *communicator_);
  summary_.last_checkpoint = output_folder() / checkpoint::step_folder_name(step_);
  comm::agree(*communicator_, "removal of old checkpoints", [&] {
    if (!is_first_rank()) return;
    util::log_info("saved " + summary_.last_checkpoint.string());
    for (const fs::path& removed : checkpoint::prune(output_folder(), config_.checkpoint.keep_last)) {
      util::log_info("removed " + removed.string());
    }
  });
}

}  // namespace fsdp::train
