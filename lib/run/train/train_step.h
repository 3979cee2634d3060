#pragma once

// One optimizer step: the heart of the toolkit. Start with TrainStep::run(); lib/README.md walks through it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/api/communicator.h"
#include "data/loading/loader.h"
#include "model/kernels/step_outcome.h"
#include "model/nn/loss.h"
#include "model/nn/stage.h"
#include "run/train/objective.h"
#include "run/train/step_batches.h"
#include "run/train/update_guard.h"
#include "shard/state/grad_norm.h"
#include "state/groups/grad_scaler.h"
#include "state/optim/optimizer.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::train {

struct StepOptions {
  int64_t gradient_accumulation_steps = 1;
  nn::LossOptions loss = {};  ///< without the members that a batch sets; its terms are reported too
  /// Whether the number of targets that count differs among batches: each batch then has its share of the
  /// loss.
  bool counts_vary = false;
  std::optional<uint64_t> dropout_key = std::nullopt;  ///< nullopt: no dropout
  double max_grad_norm = 1.0;                          ///< 0: no clipping
  double norm_type = 2.0;
  double clip_grad_value = 0.0;  ///< limit for each element of the gradient; 0: no clipping
  bool no_sync = false;          ///< reduce gradients after the last micro-batch only
  /// Whether loss and norm may stay on the device (TrainStep::reads_late()), as they do on GPUs.
  bool may_read_late = false;
};

class ArrivingGradients;

struct StepResult {
  bool is_read = true;     ///< false: loss and norm are on the device, for TrainStep::read_outcome()
  double loss = 0.0;       ///< mean over all tokens of the global batch, in nats
  double loss_sum = 0.0;   ///< sum of the losses since the last reading, this step's included
  int64_t losses = 0;      ///< number of these losses
  double grad_norm = 0.0;  ///< before clipping; not finite when the step was skipped
  /// Nothing was updated: the gradients overflowed at this loss scale, which is lower in the next step, the
  /// guard decided so, or no target counts.
  bool skipped = false;
  /// No target of any rank counts: nothing was computed, and loss and norm are NaN.
  bool without_targets = false;
  std::string skip_reason = {};  ///< empty unless skipped
  int64_t counted = 0;           ///< targets that count, of all ranks; 0 unless StepOptions::counts_vary
  int64_t tokens = 0;            ///< inputs that are no padding, likewise
  bool stop = false;             ///< a stop was requested on some rank; the same on every rank
  bool leave = false;            ///< leaving was requested on some rank; the same on every rank
};

/// Whether each of these requests is made on any rank. Collective.
std::vector<bool> requested_on_any_rank(comm::Communicator& communicator, const std::vector<bool>& requests);

class TrainStep {
 public:
  /// All must outlive the object; `engine` shards `model`.
  struct StepParts {
    nn::Stage& model;
    shard::Engine& engine;
    optim::Optimizer& optimizer;
    const data::BatchSource& batches;                ///< on the device, see data::PrefetchingBatches
    optim::GradScaler* scaler = nullptr;             ///< null: the loss is not scaled
    std::function<bool()> stop_requested = nullptr;  ///< whether this rank is to stop; called once a step
    UpdateGuard* guard = nullptr;  ///< null: the first loss or norm that is not finite ends the run
    std::shared_ptr<Objective> objective = std::make_shared<LanguageObjective>();
  };
  TrainStep(const StepParts& parts, const StepOptions& options);
  virtual ~TrainStep() = default;
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  /// Forward and backward of every micro-batch, clipping, one update of the shards. Collective. Throws
  /// Error(kDiverged) on every rank, before anything is updated, when the loss is not finite, or when the
  /// gradient norm is not and no lower loss scale is left to try; with a guard that skips such steps, when it
  /// has skipped too many in a row. With updates_as_gradients_arrive(), a step that throws this or another
  /// error may have updated weights.
  virtual StepResult run(StepPosition position);

  /// Whether the loss, the norm and what follows from them (clipping, the end of a run that diverges) are
  /// decided on the device, so that the host waits for it only in steps with StepPosition::reads_outcome: no
  /// scaler and no guard is there, the norm type is finite, and shards and optimizer are on the device. The
  /// numbers are the same, up to the last bits of the norm. After a loss or norm that is not finite no step
  /// updates anything, and the next reading throws run()'s error.
  bool reads_late() const { return outcome_.has_value(); }
  /// Sets loss and norm in `result`, that of the last step, if it lacks them. Collective if it throws.
  void read_outcome(StepResult& result);

  /// Whether units are updated during backward (run/train/arriving_gradients.h): gradients are in host
  /// memory, or move there, and without clipping, scaler and guard no update depends on all of them.
  bool updates_as_gradients_arrive() const { return updates_as_gradients_arrive_; }

 protected:
  /// All that the update of a step depends on beside the gradients.
  struct StepUpdate {
    StepPosition position;
    StepResult result;
    double local_loss = 0;
    shard::Clipping clipping = {};
    shard::KnownNorms norms = {};  ///< norms of gradients that may have been freed
  };
  /// Runs all micro-batches; returns this rank's mean loss, a double on the device.
  virtual at::Tensor accumulate_gradients(StepBatches& batches, ArrivingGradients& arriving);
  /// Sets the mean loss over ranks and whether a stop is requested on any, in one collective.
  virtual void share_loss(double local_loss, StepResult& result);
  /// Ends a step whose loss and norm are known, or one without targets.
  virtual StepResult conclude(StepUpdate step, ArrivingGradients* arriving);

  /// Adds the gradients of one micro-batch to the shards; returns its share of this rank's mean loss, a
  /// double on the device, without waiting for it.
  at::Tensor run_micro_batch(const MicroBatch& micro_batch);
  StepResult update(StepUpdate step, ArrivingGradients* arriving);

  StepParts parts_;
  bool updates_as_gradients_arrive_ = false;

 private:
  /// Ends a step with reads_late(). `local_loss`: this rank's.
  StepResult update_without_waiting(StepUpdate step, const at::Tensor& local_loss,
                                    const ArrivingGradients& arriving);
  bool computes_on_host() const;
  /// Whether a stop is requested on any rank. Collective.
  void share_requests(StepResult& result);
  /// Whether to update: what the guard decides, where there is one. `finite`: loss and norm are, or the loss
  /// scaler goes on from a norm that is not.
  bool passes_guard(StepUpdate& step, bool finite);
  /// `gradients_are_left`: the engine has the gradients of the step that diverged, or step.norms their norms.
  [[noreturn]] void report_divergence(const StepUpdate& step, bool gradients_are_left = true);
  /// ", samples 64 to 127 of the run, loss not finite on rank 1". Collective.
  std::string described_samples(const StepPosition& position, double local_loss);

  StepOptions options_;
  std::optional<kernels::DeviceOutcome> outcome_;
  double loss_sum_read_ = 0;          ///< StepOutcome::loss_sum at the last reading
  std::vector<StepPosition> unread_;  ///< the steps since the last reading
};

}  // namespace fsdp::train
