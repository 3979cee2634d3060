#pragma once

// Trainer: a whole run, from the config to the last checkpoint. One object per process; everything here is
// collective.

#include <filesystem>
#include <memory>
#include <optional>

#include "comm/api/communicator.h"
#include "comm/api/trace.h"
#include "data/loading/loader.h"
#include "data/loading/prefetch.h"
#include "run/train/checkpointer.h"
#include "run/train/run_continuation.h"
#include "run/train/run_exporter.h"
#include "run/train/run_metrics.h"
#include "run/train/run_saves.h"
#include "run/train/run_state.h"
#include "run/train/run_validation.h"
#include "run/train/sample_text.h"
#include "run/train/step_meter.h"
#include "run/train/task_scores.h"
#include "setup/config/config.h"

namespace fsdp::train {

class Trainer {
 public:
  /// Builds everything and resumes if the config says so. Errors in config, data, weights, checkpoint or
  /// output folder of any rank are thrown here on every rank, before anything is written.
  Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
          ProgressOutput progress, RunHooks hooks = {});

  /// Trains to training.steps, or until a stop is requested on a rank or training.stop_after_hours are over;
  /// then all ranks end the step and save, unless the config saves no checkpoints at all. Throws
  /// Error(kDiverged) when the loss is not finite, and, after everything else, the error of the last save if
  /// it failed (Error(kIo) when the disk is full).
  RunSummary run();

  /// Copies the state to RunHooks::membership, which must be set. Requires: called after run(), also after
  /// one that threw because a peer is lost. Not collective.
  void keep_state() { continuation_->keep(); }

 private:
  TrainingState training_state(nlohmann::json data = nullptr);
  /// Informs about another global batch than before the run was resumed.
  void report_batch_change();
  /// Returns the config with the number of micro-batches that was given, so that config.toml serves other
  /// numbers of ranks too.
  config::Config config_as_given() const;
  void open_data();
  void count_steps();
  void prepare_output();
  void describe_run() const;
  void report_changes_since(const std::filesystem::path& resolved_config) const;
  void train();
  StepObservers make_observers();
  StepPosition next_position() const;
  [[noreturn]] void report_out_of_memory() const;
  /// Path of the file of logging.memory_snapshot, written when the GPU's memory is full.
  std::filesystem::path memory_snapshot() const;

  int64_t given_micro_steps_, given_rows_;
  RunState run_;
  std::shared_ptr<comm::Trace> trace_;  ///< null unless logging.trace_communication
  std::optional<data::TrainLoader> loader_;
  std::optional<data::PrefetchingBatches> prefetch_;  ///< batches of the loader, on the device
  std::optional<TimedBatches> batches_;               ///< the same batches
  std::optional<data::RowSurvey> survey_;  ///< survey of data.train, on rank 0; nullopt if all targets count
  std::unique_ptr<Checkpointer> checkpointer_;
  std::shared_ptr<RunValidation> validation_;
  std::shared_ptr<RunMetrics> metrics_;
  std::shared_ptr<RunSaves> saves_;
  std::shared_ptr<RunExporter> exporter_;          ///< null unless this rank shows metrics
  std::unique_ptr<SampleText> sample_text_;        ///< null unless logging.sample_every
  std::unique_ptr<TaskScores> task_scores_;        ///< null without evaluation.tasks
  std::unique_ptr<RunContinuation> continuation_;  ///< null unless ranks change
  std::unique_ptr<TrainStep> train_step_;
};

}  // namespace fsdp::train
