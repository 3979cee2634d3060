#pragma once

// The state of a run that its trainer and what accompanies its steps (run/train/step_observer.h) share.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/api/activity.h"
#include "comm/api/communicator.h"
#include "comm/api/mesh.h"
#include "run/train/device.h"
#include "run/train/evaluate.h"
#include "run/train/fault_injection.h"
#include "run/train/progress.h"
#include "run/train/run_memory.h"
#include "run/train/run_parts.h"
#include "run/train/step_meter.h"
#include "run/train/time_left.h"
#include "setup/config/config.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::train {

/// Additions for a run whose ranks change (run/replicas). A Trainer lives as long as its ranks stay the same.
struct MembershipHooks {
  int home_rank = 0;            ///< this process's rank among all processes of the run
  RunMemory* memory = nullptr;  ///< holds the state at the begin; receives the state at the end
  /// Whether the ranks are to change between two steps. Called once a step.
  std::function<bool()> change_is_due = nullptr;
};

/// Each may be null.
struct RunHooks {
  /// Whether this rank is to stop. Called in each step, validation batch and sampled token, by the training
  /// thread.
  std::function<bool()> stop_requested = nullptr;
  std::shared_ptr<comm::Activity> activity = nullptr;  ///< notified of each step
  std::optional<MembershipHooks> membership = std::nullopt;
};

/// The outcome of a run; the same on every rank.
struct RunSummary {
  int64_t step = 0;
  std::optional<double> loss;             ///< loss of the last step; nullopt when no step was left to do
  std::optional<double> validation_loss;  ///< the newest of this start, if there is validation data
  std::optional<ValidationHistory::Best> best;  ///< the best of the whole run's validations
  std::filesystem::path last_checkpoint;        ///< empty when none was saved
  bool stopped = false;                         ///< before training.steps, because a rank was asked to
  /// Before training.steps, because evaluation.patience or training.stop_after_hours was exhausted.
  bool ended_early = false;
  bool left = false;  ///< because the ranks are to change; the run goes on with others
};

struct RunState {
  bool is_first_rank() const { return communicator->rank() == 0; }
  std::filesystem::path output_folder() const { return config.run.output_dir; }
  /// Whether the state comes from the memory of the ranks, not from a checkpoint.
  bool continues() const { return hooks.membership && hooks.membership->memory->state_step() >= 0; }
  /// Whether the number of steps done is a multiple of the interval; 0: never.
  bool is_due(int64_t interval) const { return interval > 0 && position.step % interval == 0; }
  bool is_complete() const { return position.step >= config.training.steps; }
  bool is_over() const { return is_complete() || summary.stopped || summary.ended_early || summary.left; }

  /// Whether a stop is requested on any rank. Collective.
  bool stop_is_requested() const;
  /// Whether this rank has a reason to end the run: a request, or the end of training.stop_after_hours.
  bool wants_to_stop() const;
  /// Ends the run after this step, because a rank was asked to stop or training.stop_after_hours are over.
  /// Collective with training.stop_after_hours.
  void stop();
  /// Number of what all ranks have done together: exchanges with training.local_steps, else steps.
  int64_t moment() const;
  /// Starts the clock of training.stop_after_hours. Logs if no step is left to do.
  void begin_training();
  double training_seconds() const;
  /// Gives the model the weights that are evaluated until the result is destroyed: the outer weights with
  /// training.local_steps. Null: the model has them.
  std::shared_ptr<void> show_evaluated_weights() const;
  /// Counts a step of so many samples.
  void count(const StepResult& result, int64_t samples);
  /// Mean loss over the steps since the last multiple of logging.interval_steps; NaN if none had targets.
  double mean_loss() const;
  /// The loss of the last step, if mean_loss() may be that of several.
  std::optional<double> last_loss() const;
  /// Number of skipped steps of the whole run; nullopt if none can be skipped and none was.
  std::optional<int64_t> skipped_steps() const;
  /// Logs a text below the line of the progress.
  void log(const std::string& text, bool warns = false);

  config::Config config;  ///< the config, with its batch resolved
  std::shared_ptr<comm::Communicator> communicator;
  RunHooks hooks;
  Progress progress;
  FaultInjection faults;
  std::optional<comm::Mesh> mesh = std::nullopt;  ///< mesh of the communicator
  RunParts parts = {};
  RunPosition position = {};
  RunSummary summary = {};
  plan::FlopsAToken flops = {};  ///< operations of forward and backward
  PeakRate peak = {};            ///< raised by rank 0 when a step was faster
  StepMeter meter = {};
  TimeLeft time_left = {};  ///< with the pauses of this rank
  bool out_of_time = false;
  /// The time when training began, after this many seconds of earlier starts.
  std::chrono::steady_clock::time_point training_began = std::chrono::steady_clock::now();
  double seconds_before = 0;
};

}  // namespace fsdp::train
