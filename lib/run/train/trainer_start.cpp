// How a run begins: trainer.cpp has its loop.

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/start_clock.h"
#include "base/util/text.h"
#include "run/train/reproducible_step.h"
#include "run/train/run_start.h"
#include "run/train/sample_position.h"
#include "run/train/trainer.h"
#include "setup/config/checks.h"
#include "setup/config/global_batch.h"
#include "setup/config/load.h"
#include "setup/config/print.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/rank_checks.h"
#include "shard/units/root_unit.h"
#include "state/groups/learning_rate.h"
#include "state/manifest/folders.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {
namespace fs = std::filesystem;
namespace {

/// For weights that are to be overwritten.
class AnyWeights final : public shard::ParameterSource {
  void read(const shard::NamedParameter&, const std::vector<util::Rectangle>&, const at::Tensor&) override {}
};

}  // namespace

Trainer::Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                 ProgressOutput progress, RunHooks hooks)
    : config_(config),
      given_micro_steps_(config.training.gradient_accumulation_steps),
      given_rows_(config.data.micro_batch_size),
      communicator_(std::move(communicator)),
      validations_(config.evaluation),
      progress_(progress, config.training.steps),
      hooks_(std::move(hooks)),
      faults_(
          FaultInjection::from_environment(hooks_.epoch ? hooks_.epoch->home_rank : communicator_->rank())) {
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
  AnyWeights any;
  KnownParts known;
  if (hooks_.epoch) known.buffers = &hooks_.epoch->kept->buffer_shapes();
  // The memory of this epoch's ranks has all weights but those that are frozen.
  if (continues() && !config_.lora.is_on()) known.weights = &any;
  parts_ = build_run_parts(config_, *mesh_, trace_, known);
  util::start_phase("data");
  faults_.attach_to(*parts_.model, *communicator_, position_.step);
  nlohmann::json data;
  comm::agree(*communicator_, "data", [&] {
    prefetch_.emplace(*loader_, prefetch_options(config_, *mesh_));
    batches_.emplace(*prefetch_);
    if (is_first_rank()) data = data_record(*loader_, validation_loader_ ? &*validation_loader_ : nullptr);
  });
  util::start_phase("checkpoints");
  checkpointer_ = std::make_unique<Checkpointer>(
      config_, training_state(std::move(data)), *communicator_,
      Checkpointer::Hooks{.before_speaking = [this] { progress_.finish_line(); },
                          .in_the_middle = [this](int64_t step) { faults_.at(FaultPlace::kWrite, step); }});
  continues() ? continue_from_memory() : static_cast<void>(position_ = checkpointer_->restore());
  report_batch_change();
  util::start_phase("comparison of replicas");
  shard::require_equal_replicas(*parts_.engine, "before the first step");
  util::start_phase("rate of matrix products");
  if (peak_.flops_per_second == 0) peak_ = find_peak_rate(config_, *communicator_);
  util::start_phase("count of operations");
  if (flops_.model == 0) {
    flops_ =
        plan::flops_a_token(config_.model, config_.data.sequence_length, parts_.checkpointing, config_.lora);
  }
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
  if (!is_first_rank() || continues()) return;
  for (const std::string& warning :
       {optim::cut_of_schedule(config_.lr_scheduler, config_.training.steps),
        shard::blocks_in_root(shard::unit_sizes(*parts_.engine)).text(config_.fsdp.min_num_params),
        survey_ && survey_->loses_tokens()
            ? util::concat("data.train has ", data::survey_text(*survey_, config_.data),
                           "; a row that does not begin a conversation lacks its prompt: ",
                           data::survey_remedy(*survey_, config_.data), " keeps every conversation whole")
            : std::string()}) {
    if (!warning.empty()) util::log_warning(warning);
  }
  util::log_info(banner(config_, parts_, *loader_, peak_, position_));
}

TrainingState Trainer::training_state(nlohmann::json data) {
  return {*parts_.engine,
          *parts_.optimizer,
          parts_.scaler ? &*parts_.scaler : nullptr,
          parts_.guard ? &*parts_.guard : nullptr,
          validation_loader_ ? &validations_ : nullptr,
          std::move(data),
          sampling_record(config_, *loader_)};
}

nlohmann::json Trainer::memory_record() {
  nlohmann::json record = training_record(config_, training_state(), position_);
  record["origin"] = checkpointer_->origin();
  record["peak_rate"] = {peak_.flops_per_second, peak_.share_of_threads};
  record["flops_a_token"] = {flops_.model, flops_.hardware};
  record["validation_line"] = validation_line_.dump();  // as text, which keeps its order
  return record;
}

void Trainer::continue_from_memory() {
  const launch::Epoch& epoch = hooks_.epoch->epoch;
  const TrainingState state = training_state();
  const nlohmann::json record = hooks_.epoch->kept->restore(
      state, epoch, *mesh_, [&] { faults_.at(FaultPlace::kTransfer, epoch.step); });
  position_ = restore_training_record(record, epoch.step, state, "the state from memory");
  util::log_debug(util::concat("has ", hooks_.epoch->kept->begun_leaves(), " micro-batches of the step"));
  begun_ = hooks_.epoch->kept->begun(*communicator_);
  if (begun_ && is_first_rank()) {
    util::log_info(util::concat(begun_->leaves, " of ", begun_->all, " micro-batches of step ",
                                position_.step + 1, " are done"));
  }
  checkpointer_->take_over(record.at("origin"));
  validation_line_ = nlohmann::ordered_json::parse(record.at("validation_line").get<std::string>());
  record.at("flops_a_token").at(0).get_to(flops_.model);
  record.at("flops_a_token").at(1).get_to(flops_.hardware);
  if (config_.logging.peak_tflops > 0) return;
  record.at("peak_rate").at(0).get_to(peak_.flops_per_second);
  record.at("peak_rate").at(1).get_to(peak_.share_of_threads);
}

/// Replicas all train with steps that do not depend on their number (obstacle_to_replicas()).
ReproducibleStep* Trainer::continued_step() const {
  return dynamic_cast<ReproducibleStep*>(train_step_.get());
}

void Trainer::keep_state() {
  KeptState& kept = *hooks_.epoch->kept;
  position_.training_seconds = training_seconds();
  kept.keep(training_state(), position_.step, memory_record());
  ReproducibleStep* step = continued_step();
  if (step == nullptr || !step->can_finish()) {
    if (auto begun = step != nullptr ? step->begun() : begun_) kept.keep_begun(std::move(*begun));
    return;
  }
  const int64_t samples = step->pending_position().samples;
  try {
    count_step(step->finish(), samples);
  } catch (const util::Error&) {
    return;  // it has diverged: no rank has updated anything
  }
  kept.keep_next(training_state(), memory_record());
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
  if (is_first_rank() && !continues()) {
    survey_ = loader_->survey();
    if (survey_) data::require_targets(*survey_, config_.data, "data.train");
  }
  if (config_.logging.sample_every > 0) sample_text_ = std::make_unique<SampleText>(config_);
  if (config_.data.validation.empty()) return;
  validation_loader_.emplace(open_validation_data(config_, *communicator_));
  if (is_first_rank() && !continues()) {
    const auto survey = validation_loader_->samples().survey(validation_loader_->num_samples());
    if (survey) data::require_targets(*survey, config_.data, "data.validation");
  }
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

void Trainer::prepare_output() {
  if (!is_first_rank()) {
    util::make_writable_folder(output_folder());
    return;
  }
  if (!continues()) describe_run();
  checkpointer_->remember_model();
  metrics_.emplace(output_folder(),
                   KeptMetrics{.resumed_step = position_.step, .validates_again = validation_is_due()},
                   MetricsFormats{.csv = config_.logging.csv, .tensorboard = config_.logging.tensorboard});
  if (continues() && position_.step > 0) write_what_is_missing();
}

/// The rank that was to write it may have been lost.
void Trainer::write_what_is_missing() {
  const int64_t step = position_.step, interval = config_.logging.interval_steps;
  const bool is_reported = step >= config_.training.steps || (interval > 0 && step % interval == 0);
  if (is_reported && !metrics_->ends_with(step, "loss")) {
    metrics_->write(
        {.step = step,
         .loss = position_.loss,
         .grad_norm = position_.grad_norm,
         .lr = optim::lr_at(config_.optimizer, config_.lr_scheduler, step, config_.training.steps),
         .tokens = position_.tokens_seen,
         .skipped_steps = skipped_steps()});
  }
  const bool is_validated = !validation_line_.is_null() && validation_line_.at("step") == step;
  if (is_validated && !metrics_->ends_with(step, "validation_loss"))
    metrics_->write_validation(validation_line_);
}

/// Refuses a folder with later steps of another run: this run's own would mix with them.
void Trainer::describe_run() const {
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
  util::write_file_atomically(output_folder() / "config.toml", config::to_toml(config_as_given()));
  util::write_file_atomically(output_folder() / "environment.json",
                              run_environment(*communicator_, peak_).dump(2) + "\n");
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

}  // namespace fsdp::train
