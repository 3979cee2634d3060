// The start of a run: the Trainer's constructor and the state that it leaves. trainer.cpp has the loop.

#include "base/device/cuda.h"
#include "base/util/error.h"
#include "base/util/file.h"
#include "base/util/log.h"
#include "base/util/start_clock.h"
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

/// Leaves weights as they are, because they will be overwritten.
class AnyWeights final : public shard::ParameterSource {
  void read(const shard::NamedParameter&, const std::vector<util::Rectangle>&, const at::Tensor&) override {}
};

}  // namespace

Trainer::Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                 ProgressOutput progress, RunHooks hooks)
    : given_micro_steps_(config.training.gradient_accumulation_steps),
      given_rows_(config.data.micro_batch_size),
      run_{.config = config,
           .communicator = std::move(communicator),
           .hooks = std::move(hooks),
           .progress{progress, config.training.steps},
           .faults = {}} {
  run_.faults = FaultInjection::from_environment(run_.hooks.membership ? run_.hooks.membership->home_rank
                                                                       : run_.communicator->rank());
  validation_ = std::make_shared<RunValidation>(run_);
  if (run_.config.logging.trace_communication) {
    trace_ = std::make_shared<comm::Trace>();
    run_.communicator = comm::make_tracing_communicator(run_.communicator, trace_);
  }
  util::start_phase("comparison of the ranks' configs");
  require_same_run(run_.config, *run_.communicator);
  util::start_phase("data");
  comm::agree(*run_.communicator, "set-up", [&] {
    config::check_world(run_.config, run_.communicator->world_size());
    config::resolve_batch(run_.config, run_.communicator->world_size());
    if (run_.config.logging.memory_snapshot) {  // before the shards are made, which the history then has too
      require_gpu("logging.memory_snapshot", run_.communicator->device());
      util::record_cuda_memory_history(run_.communicator->device().index(), memory_snapshot());
    }
    open_data();
  });
  run_.mesh.emplace(run_.config.mesh, run_.communicator);
  AnyWeights any;
  KnownParts known;
  util::ByteProgressBar bar(progress);
  known.progress = [&bar](std::string_view phase, int64_t done, int64_t total) {
    bar.show(phase, done, total);
  };
  if (run_.hooks.membership) known.buffers = &run_.hooks.membership->memory->buffer_shapes();
  // The memory of the ranks has all weights but those that are frozen.
  if (run_.continues() && !run_.config.lora.is_on()) known.weights = &any;
  run_.parts = build_run_parts(run_.config, *run_.mesh, trace_, known);
  bar.clear();
  util::start_phase("data");
  run_.faults.attach_to(*run_.parts.model, *run_.communicator, run_.position.step);
  nlohmann::json data;
  comm::agree(*run_.communicator, "data", [&] {
    prefetch_.emplace(*loader_, prefetch_options(run_.config, *run_.mesh));
    batches_.emplace(*prefetch_);
    if (run_.is_first_rank()) data = data_record(*loader_, validation_->loader());
  });
  util::start_phase("checkpoints");
  checkpointer_ = std::make_unique<Checkpointer>(
      run_.config, training_state(std::move(data)), *run_.communicator,
      Checkpointer::Hooks{.before_speaking = [this] { run_.progress.finish_line(); },
                          .before_copy = [this](int64_t step) { run_.faults.at(FaultPlace::kCopy, step); },
                          .in_the_middle = [this](int64_t step) { run_.faults.at(FaultPlace::kWrite, step); },
                          .loading =
                              [shown = std::make_shared<util::ByteProgressBar>(progress)](
                                  std::string_view phase, int64_t done, int64_t total) {
                                shown->show(phase, done, total);
                                if (done >= total) shown->clear();
                              }});
  if (run_.hooks.membership) {
    continuation_ = std::make_unique<RunContinuation>(run_, *checkpointer_, *validation_,
                                                      [this] { return training_state(); });
  }
  run_.continues() ? continuation_->restore() : static_cast<void>(run_.position = checkpointer_->restore());
  report_batch_change();
  util::start_phase("comparison of replicas");
  shard::require_equal_replicas(*run_.parts.engine, "before the first step");
  util::start_phase("rate of matrix products");
  if (run_.peak.flops_per_second == 0) run_.peak = find_peak_rate(run_.config, *run_.communicator);
  util::start_phase("count of operations");
  if (run_.flops.model == 0) {
    run_.flops = plan::flops_a_token(run_.config.model, run_.config.data.sequence_length,
                                     run_.parts.checkpointing, run_.config.lora);
  }
  metrics_ = std::make_shared<RunMetrics>(
      run_, *batches_,
      RankPaces::make(run_.config, run_.parts.engine->communicator().shared_from_this(), *batches_,
                      run_.flops.model));
  validation_->set_metrics(metrics_.get());
  saves_ = std::make_shared<RunSaves>(run_, *checkpointer_, *metrics_);
  exporter_ = make_run_exporter({run_, *metrics_, *checkpointer_, *batches_});
  util::start_phase("output folder and log");
  comm::agree(*run_.communicator, "output folder", [&] {
    if (run_.config.training.epochs > 0 && run_.position.step > 0) count_steps();  // of what is left
    prepare_output();
  });
  if (trace_) {
    comm::agree(*run_.communicator, "trace files", [&] {
      trace_->open(run_.output_folder() / concat("trace.rank", run_.communicator->rank(), ".jsonl"));
    });
  }
  if (!run_.is_first_rank() || run_.continues()) return;
  for (const std::string& warning :
       {optim::cut_of_schedule(run_.config.lr_scheduler, run_.config.training.steps),
        shard::blocks_in_root(shard::unit_sizes(*run_.parts.engine)).text(run_.config.fsdp.min_num_params),
        survey_ && survey_->loses_tokens()
            ? concat("data.train has ", data::survey_text(*survey_, run_.config.data),
                     "; a row that does not begin a conversation lacks its prompt: ",
                     data::survey_remedy(*survey_, run_.config.data), " keeps every conversation whole")
            : std::string(),
        loader_->notes()}) {
    if (!warning.empty()) util::log_warning(warning);
  }
  util::log_info(banner(run_.config, run_.parts, *loader_, run_.peak, run_.position));
}

TrainingState Trainer::training_state(nlohmann::json data) {
  return {*run_.parts.engine,
          *run_.parts.optimizer,
          run_.parts.scaler ? &*run_.parts.scaler : nullptr,
          run_.parts.guard ? &*run_.parts.guard : nullptr,
          validation_->loader() != nullptr ? &validation_->history() : nullptr,
          std::move(data),
          sampling_record(run_.config, *loader_),
          &*loader_,
          run_.parts.outer.get()};
}

/// Informs the user, who can judge the effect on the loss but may not know of the change, because it follows
/// from another number of ranks.
void Trainer::report_batch_change() {
  const int64_t before = run_.position.samples_per_step, now = loader_->samples_per_step();
  run_.position.samples_per_step = now;
  if (before == 0 || before == now || !run_.is_first_rank()) return;
  const bool by_tokens = run_.config.data.max_tokens > 0;
  util::log_info(concat("the global batch is ", now, by_tokens ? " batches" : " samples",
                        " per step from here on (", run_.mesh->shape().row_ranks(), " ranks x ",
                        by_tokens ? "" : concat(run_.config.data.micro_batch_size, " x "),
                        run_.config.training.gradient_accumulation_steps, " micro-batches); it was ", before,
                        " up to step ", run_.position.step, "; training.global_batch_size = ", before,
                        " keeps it"));
}

config::Config Trainer::config_as_given() const {
  config::Config config = run_.config;
  config.training.gradient_accumulation_steps = given_micro_steps_;
  config.data.micro_batch_size = given_rows_;
  return config;
}

void Trainer::open_data() {
  loader_.emplace(open_training_data(run_.config, *run_.communicator));
  if (run_.config.training.epochs > 0) count_steps();
  if (run_.is_first_rank() && !run_.continues()) {
    survey_ = loader_->survey();
    if (survey_) data::require_targets(*survey_, run_.config.data, "data.train");
  }
  if (run_.config.logging.sample_every > 0) sample_text_ = std::make_unique<SampleText>(run_.config);
  if (!run_.config.evaluation.tasks.empty()) task_scores_ = std::make_unique<TaskScores>(run_.config);
  if (!run_.config.data.validation.empty()) validation_->open();
}

void Trainer::count_steps() {
  int64_t& steps = run_.config.training.steps;
  steps = steps_of_epochs(run_.config.training, *loader_, run_.position);
  run_.progress.set_total_steps(steps);
  config::Config counted = run_.config;
  counted.training.epochs = 0;
  for (const config::Conflict& conflict : config::find_conflicts(counted)) {
    fail(ErrorKind::kUsage, "training.epochs = ", run_.config.training.epochs, " means ", steps,
         " steps here; ", conflict.message);
  }
}

void Trainer::prepare_output() {
  if (!run_.is_first_rank()) {
    util::make_writable_folder(run_.output_folder());
    return;
  }
  if (!run_.continues()) describe_run();
  checkpointer_->remember_model();
  metrics_->open(validation_->is_due());
  if (run_.continues() && run_.position.step > 0) metrics_->write_what_is_missing(validation_->line());
}

/// Refuses a folder with later steps of another run, with which this run's steps would mix.
void Trainer::describe_run() const {
  auto found = checkpoint::find_checkpoints(run_.output_folder());
  if (!found.complete.empty() && found.complete.back().step > run_.position.step) {
    fail(ErrorKind::kUsage, "run.output_dir ", run_.output_folder().string(), " already contains ",
         found.complete.back().folder.filename().string(), ", later than step ", run_.position.step,
         " at which this run starts; choose another run.output_dir, remove it, or set "
         "checkpoint.resume to auto");
  }
  if (const fs::path& from = checkpointer_->resumed_from(); !from.empty()) {
    // The config is beside the checkpoint, which may be in another run's folder.
    fs::path resolved = fs::absolute(from).parent_path() / "config.toml";
    if (fs::exists(resolved)) report_changes_since(resolved);
  }
  util::write_file_atomically(run_.output_folder() / "config.toml", config::to_toml(config_as_given()));
  util::write_file_atomically(run_.output_folder() / "environment.json",
                              run_environment(*run_.communicator, run_.peak).dump(2) + "\n");
}

void Trainer::report_changes_since(const fs::path& resolved) const {
  try {
    for (const std::string& change :
         config::differing_keys(config::load_resolved_config(resolved), config_as_given())) {
      util::log_info("config differs from the run so far: " + change);
    }
  } catch (const util::Error& error) {
    util::log_warning(concat("cannot compare with ", resolved.string(), ": ", error.what()));
  }
}

}  // namespace fsdp::train
