#pragma once

// Trainer: a whole run, from the config to the last checkpoint. One object a process; everything here is
// collective.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "comm/activity.h"
#include "comm/communicator.h"
#include "comm/trace.h"
#include "config/config.h"
#include "data/loader.h"
#include "data/prefetch.h"
#include "data/tokenizer.h"
#include "train/checkpointer.h"
#include "train/fault_injection.h"
#include "train/metrics.h"
#include "train/peak_rate.h"
#include "train/progress.h"
#include "train/run_parts.h"
#include "train/sample_text.h"
#include "train/step_meter.h"
#include "train/timed_batches.h"
#include "train/validation_history.h"

namespace fsdp::train {

/// What a run hears from outside and tells while it runs; everything may be left out.
struct RunHooks {
  std::function<bool()> stop_requested = nullptr;  ///< of this rank; asked in each step, validation batch and
                                                   ///< sampled token, by the training thread
  std::shared_ptr<comm::Activity> activity = nullptr;  ///< hears of each step
};

/// What a run ended with; the same on every rank.
struct RunSummary {
  int64_t step = 0;
  std::optional<double> loss;                   ///< of the last step; nothing when no step was left to do
  std::optional<double> validation_loss;        ///< after the last step, when there is validation data
  std::optional<ValidationHistory::Best> best;  ///< validation of the run
  std::filesystem::path last_checkpoint;        ///< empty when none was saved
  bool stopped = false;                         ///< before training.steps, because a rank was told to
  bool ended_early = false;  ///< before training.steps, because evaluation.patience was over
};

class Trainer {
 public:
  /// Builds everything and resumes if the config says so. Whatever is wrong with config, data, weights,
  /// checkpoint or output folder on any rank is thrown here on every rank, before anything is written.
  Trainer(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
          ProgressOutput progress, RunHooks hooks = {});

  /// Trains to training.steps, or until a rank is told to stop; then all ranks end the step and save, unless
  /// the config saves no checkpoints at all. Throws Error(kDiverged) when the loss is not finite, and at the
  /// end, when all is done, what the last save failed with (Error(kIo) when the disk is full).
  RunSummary run();

 private:
  /// Says so when a run that resumes sees another number of samples a step.
  void tell_batch();
  /// With the micro-batches that were given, so that the run's config.toml serves other numbers of ranks too.
  config::Config config_as_given() const;
  void open_data();
  void count_steps();
  void prepare_output();
  void report_changes_since(const std::filesystem::path& resolved_config) const;
  void train();
  void record_memory_history() const;
  [[noreturn]] void report_out_of_memory() const;
  /// Of the GPU's memory when it was full (logging.memory_snapshot).
  std::filesystem::path memory_snapshot() const;
  bool saves_checkpoints() const;
  void save_if(bool due, bool best);
  void report(const StepResult& result, double lr);
  /// Whether any rank is told to stop. Collective.
  bool stop_is_requested();
  /// Of the state as it is, and not done yet: at the intervals and after the last step.
  bool validation_is_due() const;
  /// Whether it is the best so far. One that is told to stop leaves no trace and is due again on resume.
  bool validate();
  void show_sample();
  bool is_first_rank() const { return communicator_->rank() == 0; }
  std::filesystem::path output_folder() const { return config_.run.output_dir; }

  config::Config config_;  ///< its batch is resolved
  int64_t given_micro_steps_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::shared_ptr<comm::Trace> trace_;  ///< null unless logging.trace_communication
  std::optional<data::TrainLoader> loader_;
  std::unique_ptr<data::PrefetchingBatches> prefetch_;  ///< null: none
  std::optional<TimedBatches> batches_;                 ///< of the loader or what loads ahead of it
  double flops_a_token_ = 0;                            ///< of the model's definition, forward and backward
  PeakRate peak_;                                       ///< raised by rank 0 where a step was faster
  std::optional<data::ValidationLoader> validation_loader_;
  std::unique_ptr<data::TokenBytes> token_bytes_;  ///< null: not known
  std::unique_ptr<SampleText> sample_text_;        ///< null unless logging.sample_every
  ValidationHistory validations_;
  RunParts parts_;
  std::optional<MetricsFile> metrics_;
  Progress progress_;
  RunHooks hooks_;
  FaultInjection faults_;
  StepMeter meter_;
  std::unique_ptr<Checkpointer> checkpointer_;
  RunPosition position_;
  RunSummary summary_;
};

}  // namespace fsdp::train
