#pragma once

// One optimizer step: the heart of the toolkit. Start with TrainStep::run(); lib/README.md walks through it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loading/loader.h"
#include "model/kernels/step_outcome.h"
#include "model/nn/loss.h"
#include "model/nn/stage.h"
#include "run/train/begun_step.h"
#include "run/train/update_guard.h"
#include "shard/engine/engine.h"
#include "shard/state/grad_norm.h"
#include "state/groups/grad_scaler.h"
#include "state/optim/optimizer.h"

namespace fsdp::train {

/// Where the samples of this rank's micro-batches are among those of a step.
struct SamplePlaces {
  int64_t rank = 0, ranks = 1;   ///< of those with batches of their own
  bool batch_is_sample = false;  ///< data.max_tokens: a batch's rows count as one
};

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
  /// With ShardOptions::sums_by_sample, which makes results independent of the number of ranks.
  std::optional<SamplePlaces> by_sample = std::nullopt;
  /// Whether loss and norm may stay on the device (TrainStep::reads_late()), as they do on GPUs.
  bool may_read_late = false;
};

class ArrivingGradients;

struct StepPosition {
  int64_t step = 1;                 ///< 1-based, for messages
  int64_t first_global_sample = 0;  ///< the run's sample position before the step
  double lr = 0.0;
  int64_t samples = 0;        ///< of the step, over all ranks, for messages; 0: unknown
  int64_t micro_batches = 0;  ///< of this step; 0: StepOptions::gradient_accumulation_steps
  bool reads_outcome = true;  ///< false: loss and norm are wanted later, or not at all
};

struct StepResult {
  bool is_read = true;     ///< false: loss and norm are on the device, for TrainStep::read_outcome()
  double loss = 0.0;       ///< mean over all tokens of the global batch, in nats
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
  bool leave = false;            ///< the same of Parts::leave_requested
};

class TrainStep {
 public:
  /// All must outlive the object; `engine` shards `model`.
  struct Parts {
    nn::Stage& model;
    shard::Engine& engine;
    optim::Optimizer& optimizer;
    const data::BatchSource& batches;                ///< on the device, see data::PrefetchingBatches
    optim::GradScaler* scaler = nullptr;             ///< null: the loss is not scaled
    std::function<bool()> stop_requested = nullptr;  ///< of this rank; called once a step
    UpdateGuard* guard = nullptr;  ///< null: the first loss or norm that is not finite ends the run
    /// Of this rank, beside stop_requested: the group is to be left after this step. Null: it never is.
    std::function<bool()> leave_requested = nullptr;
  };
  TrainStep(const Parts& parts, const StepOptions& options);

  /// Forward and backward of every micro-batch, clipping, one update of the shards. Collective. Throws
  /// Error(kDiverged) on every rank, before anything is updated, when the loss is not finite, or when the
  /// gradient norm is not and no lower loss scale is left to try; with a guard that skips such steps, when it
  /// has skipped too many in a row. With updates_as_gradients_arrive(), a step that throws this or another
  /// error may have updated weights.
  StepResult run(const StepPosition& position);

  /// Whether the loss, the norm and what follows from them (clipping, the end of a run that diverges) are
  /// decided on the device, so that the host waits for it only in steps with StepPosition::reads_outcome: no
  /// scaler and no guard is there, a finite norm type, and shards and optimizer are on the device. The numbers
  /// are the same, up to the last bits of the norm. After a loss or norm that is not finite no step updates anything, and the next reading
  /// throws run()'s error.
  bool reads_late() const { return outcome_.has_value(); }
  /// Sets loss and norm in `result`, that of the last step, if it lacks them. Collective if it throws.
  void read_outcome(StepResult& result);

  /// Whether units are updated during backward (run/train/arriving_gradients.h): gradients are in host memory, or move
  /// there, and without clipping, scaler and guard no update depends on all of them.
  bool updates_as_gradients_arrive() const { return updates_as_gradients_arrive_; }

  /// Whether run() has failed in the last collective of its step, in which no rank learns anything that its
  /// update depends on: with StepOptions::by_sample, ranks that came through it have updated their shards, so
  /// that the others must be able to. Not collective.
  bool can_finish() const { return pending_.has_value(); }
  /// What is left of that step. Not collective, unless it throws.
  StepResult finish();

  /// Of the step in which run() has failed: the micro-batches that are done, with Parts::leave_requested and unless
  /// counts vary; nullopt if there are none. Resets the engine. Not collective.
  std::optional<BegunStep> begun();
  /// The next run() does the rest of this step. The same leaves on every rank.
  void continue_with(BegunStep begun) { begun_ = std::move(begun); }
  /// Of that step.
  const StepPosition& pending_position() const { return pending_->position; }

 private:
  /// All that the update of a step depends on beside the gradients.
  struct Pending {
    StepPosition position;
    double local_loss = 0;
    shard::Clipping clipping;
    shard::KnownNorms norms;
    StepResult result;
  };
  struct MicroBatch {
    data::Batch batch;
    double divisor = 1;  ///< of its loss: the sum over the micro-batches of a rank is what ranks average
  };
  /// Micro-batches of the step.
  int64_t micro_batches(const StepPosition& position) const;
  /// Runs all micro-batches; returns this rank's mean loss, a double on the device. `counted`: those of
  /// batches_with_shares(), with StepOptions::counts_vary.
  at::Tensor accumulate_gradients(const StepPosition& position, ArrivingGradients& arriving,
                                  std::vector<MicroBatch> counted);
  /// The same with StepOptions::by_sample; the mean over the global batch's targets, of this rank's losses.
  at::Tensor accumulate_by_sample(const StepPosition& position, std::vector<MicroBatch> counted);
  /// The whole step, if none of its targets counts.
  StepResult step_without_targets(const StepPosition& position);
  /// The end of run() with reads_late(). local_loss: this rank's.
  StepResult update_without_waiting(const StepPosition& position, const at::Tensor& local_loss);
  /// All micro-batches of a step, where their divisors depend on all of them. Collective.
  std::vector<MicroBatch> batches_with_shares(const StepPosition& position, int64_t count);
  /// Adds the gradients of one micro-batch to the shards; returns its share of this rank's mean loss, a
  /// double on the device, without waiting for it.
  at::Tensor run_micro_batch(const MicroBatch& micro_batch);
  bool computes_on_host() const;
  std::unique_ptr<comm::Work> share_losses(const at::Tensor& losses);
  /// The mean over the samples of all ranks. Collective.
  double loss_of_samples();
  void share_loss(double local_loss, StepResult& result);
  /// Whether a stop, or leaving, is requested on any rank. Collective.
  void share_requests(StepResult& result);
  StepResult update(Pending step, ArrivingGradients* arriving);
  /// Whether to update: what the guard decides, where there is one. `finite`: loss and norm are, or the loss
  /// scaler goes on from a norm that is not.
  /// `norms`: of gradients that may have been freed.
  bool passes_guard(const StepPosition& position, double local_loss, bool finite,
                    const shard::KnownNorms& norms, StepResult& result);
  /// `gradients_are_left`: those of the step that diverged, or their `norms`.
  [[noreturn]] void report_divergence(const StepPosition& position, double local_loss,
                                      const shard::KnownNorms& norms, const StepResult& result,
                                      bool gradients_are_left = true);
  /// ", samples 64 to 127 of the run, loss not finite on rank 1". Collective.
  std::string described_samples(const StepPosition& position, double local_loss);

  Parts parts_;
  StepOptions options_;
  bool updates_as_gradients_arrive_ = false;
  int64_t counted_ = 0, tokens_ = 0;  ///< of the step under way
  /// With by_sample, of the step under way: by position, 0 for those of other ranks until they are shared; and the
  /// targets of all ranks, at least 1.
  at::Tensor sample_losses_;
  double targets_of_step_ = 1;
  /// Of the step under way, unless it ends as it should: its sharing of losses, and the leaves after each.
  struct SharedLosses {
    std::unique_ptr<comm::Work> work;
    int64_t leaves;
  };
  std::vector<SharedLosses> shared_losses_;
  std::optional<BegunStep> begun_;  ///< what the step under way, or the next, begins with
  int64_t leaves_ = 0;              ///< of the step under way; 0: there is none
  int64_t first_leaf_ = 0;          ///< of those that it computes itself
  std::optional<kernels::DeviceOutcome> outcome_;
  std::vector<StepPosition> unread_;  ///< the steps since the last reading
  std::optional<Pending> pending_;    ///< the step under way, once every rank can finish it alone
};

}  // namespace fsdp::train
