#pragma once

// Trainer: a whole run, from the config to the last checkpoint. One object per process; everything here is
// collective.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/mesh.h"
#include "comm/api/trace.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "data/tokenizers/tokenizer.h"
#include "run/train/checkpointer.h"
#include "run/train/device.h"
#include "run/train/evaluate.h"
#include "run/train/fault_injection.h"
#include "run/train/kept_state.h"
#include "run/train/metrics.h"
#include "run/train/progress.h"
#include "run/train/rank_paces.h"
#include "run/train/run_parts.h"
#include "run/train/sample_text.h"
#include "run/train/step_meter.h"
#include "setup/config/config.h"
#include "tools/launch/epoch.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {

/// What a run with replicas adds (run/train/replicas.h): its Trainer lives for one epoch.
struct EpochHooks {
  launch::Epoch epoch;
  int home_rank = 0;  ///< among all of the run
  /// What this rank has of the state after epoch.step, unless that is -1; receives the state that it leaves
  /// with.
  KeptState* kept = nullptr;
  /// The epoch is to be left between two steps. Called once a step.
  std::function<bool()> change_is_due = nullptr;
};

/// Each may be null.
struct RunHooks {
  /// Of this rank; called in each step, validation batch and sampled token, by the training thread.
  std::function<bool()> stop_requested = nullptr;
  std::shared_ptr<comm::Activity> activity = nullptr;  ///< notified of each step
  std::optional<EpochHooks> epoch = std::nullopt;
};

/// The outcome of a run; the same on every rank.
struct RunSummary {
  int64_t step = 0;
  std::optional<double> loss;                   ///< of the last step; nullopt when no step was left to do
  std::optional<double> validation_loss;        ///< the newest of this start, where there is validation data
  std::optional<ValidationHistory::Best> best;  ///< of the whole run's validations
  std::filesystem::path last_checkpoint;        ///< empty when none was saved
  bool stopped = false;                         ///< before training.steps, because a rank was asked to
  /// Before training.steps, because evaluation.patience or training.stop_after_hours was exhausted.
  bool ended_early = false;
  bool left = false;  ///< the epoch, because a change is due on some rank; the run goes on in the next one
};

class ReproducibleStep;

class Trainer {
 public:
  /// Builds everything and resumes if the config says so. Errors in config, data, weights, checkpoint or
  /// output folder of any rank are thrown here on every rank, before anything is written.
  Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
          ProgressOutput progress, RunHooks hooks = {});

  /// Trains to training.steps, or until a stop is requested on a rank or training.stop_after_hours are over;
  /// then all ranks end the step and save, unless the config saves no checkpoints at all. Throws Error(kDiverged) when the loss is not finite, and,
  /// after everything else, the error of the last save if it failed (Error(kIo) when the disk is full).
  RunSummary run();

  /// With RunHooks::epoch, after run(), also after one that threw because a peer is lost: copies the state to
  /// EpochHooks::kept. Not collective.
  void keep_state();

 private:
  TrainingState training_state(nlohmann::json data = nullptr);
  /// The state comes from the memory of this epoch's ranks, not from a checkpoint.
  bool continues() const { return hooks_.epoch && hooks_.epoch->epoch.step >= 0; }
  void continue_from_memory();
  nlohmann::json memory_record();
  /// Null before the first step.
  ReproducibleStep* continued_step() const;
  void count_step(const StepResult& result, int64_t samples);
  /// Informs about another global batch than before the run was resumed.
  void report_batch_change();
  /// With the number of micro-batches that was given, so that config.toml serves other numbers of ranks too.
  config::Config config_as_given() const;
  void open_data();
  void count_steps();
  void prepare_output();
  void write_what_is_missing();
  void describe_run() const;
  void report_changes_since(const std::filesystem::path& resolved_config) const;
  void train();
  /// Whether training.stop_after_hours are over by this rank's clock.
  bool time_is_over() const;
  double training_seconds() const;
  void report_skip(const StepResult& result);
  /// Of the whole run; nullopt where none can be and none was.
  std::optional<int64_t> skipped_steps() const;
  void report_early_end();
  [[noreturn]] void report_out_of_memory() const;
  /// The file of logging.memory_snapshot, written when the GPU's memory is full.
  std::filesystem::path memory_snapshot() const;
  void save_if(bool due, bool best);
  void finish_metrics();
  void report(const StepResult& result, double lr);
  /// Collective.
  void compare_ranks();
  /// Whether a stop is requested on any rank. Collective.
  bool stop_is_requested();
  /// At the intervals and after the last step, unless this step was validated already.
  bool validation_is_due() const;
  /// Returns whether it is the best so far. One that is stopped leaves no trace and is due again on resume.
  bool validate();
  void report_validation(const Validation& validation, bool best);
  void show_sample();
  bool is_first_rank() const { return communicator_->rank() == 0; }
  std::filesystem::path output_folder() const { return config_.run.output_dir; }

  config::Config config_;  ///< its batch is resolved
  int64_t given_micro_steps_, given_rows_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::optional<comm::Mesh> mesh_;      ///< of the communicator
  std::shared_ptr<comm::Trace> trace_;  ///< null unless logging.trace_communication
  std::optional<data::TrainLoader> loader_;
  std::optional<data::PrefetchingBatches> prefetch_;  ///< of the loader, on the device
  std::optional<TimedBatches> batches_;               ///< the same
  std::unique_ptr<RankPaces> paces_;                  ///< null where ranks are not compared
  plan::FlopsAToken flops_;                           ///< of forward and backward
  PeakRate peak_;                                     ///< raised by rank 0 when a step was faster
  std::optional<data::ValidationLoader> validation_loader_;
  std::unique_ptr<data::TokenBytes> token_bytes_;  ///< null: unknown
  std::unique_ptr<SampleText> sample_text_;        ///< null unless logging.sample_every
  ValidationHistory validations_;
  std::optional<data::RowSurvey> survey_;   ///< of data.train, on rank 0; nothing where all targets count
  nlohmann::ordered_json validation_line_;  ///< of the newest validation; null: unknown
  RunParts parts_;
  std::optional<MetricsFile> metrics_;
  Progress progress_;
  RunHooks hooks_;
  FaultInjection faults_;
  StepMeter meter_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<TrainStep> train_step_;
  std::optional<BegunStep> begun_;  ///< what is done of the first step, until train_step_ has it
  RunPosition position_;
  /// When run() began, after this many seconds of earlier starts.
  std::chrono::steady_clock::time_point training_began_ = std::chrono::steady_clock::now();
  double seconds_before_ = 0;
  bool out_of_time_ = false;
  RunSummary summary_;
};

}  // namespace fsdp::train
