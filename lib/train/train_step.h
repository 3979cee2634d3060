#pragma once

// One optimizer step: the heart of the toolkit, short enough to read whole. lib/README.md walks through it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "nn/loss.h"
#include "nn/stage.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"
#include "shard/engine.h"
#include "train/update_guard.h"

namespace fsdp::train {

struct StepOptions {
  int64_t gradient_accumulation_steps = 1;
  nn::LossOptions loss = {};  ///< without what differs from batch to batch; its terms are reported too
  /// Whether batches differ in how many of their targets count: each then has its share of the loss.
  bool counts_vary = false;
  std::optional<uint64_t> dropout_key = std::nullopt;  ///< nothing: the model drops nothing
  double max_grad_norm = 1.0;                          ///< 0: no clipping
  double norm_type = 2.0;
  bool no_sync = false;  ///< reduce gradients after the last micro-batch only
};

/// Where a step stands in the run.
struct StepPosition {
  int64_t step = 1;                 ///< 1-based, for messages
  int64_t first_global_sample = 0;  ///< the run's sample position before the step
  double lr = 0.0;
  int64_t samples = 0;        ///< of the step, over all ranks, for messages; 0: not known
  int64_t micro_batches = 0;  ///< of this step; 0: StepOptions::gradient_accumulation_steps
};

struct StepResult {
  double loss = 0.0;       ///< mean over all tokens of the global batch, in nats
  double grad_norm = 0.0;  ///< before clipping; not finite when the step was skipped
  /// Nothing was updated: the gradients overflowed at this loss scale, and the next step has a lower one; or
  /// the guard said so.
  bool skipped = false;
  std::string skip_reason;  ///< empty unless skipped
  bool stop = false;        ///< a rank was told to stop; the same on every rank
};

class TrainStep {
 public:
  /// What is trained and by what; all must outlive the object, and `engine` shards `model`.
  struct Parts {
    nn::Stage& model;
    shard::Engine& engine;
    optim::Optimizer& optimizer;
    const data::BatchSource& batches;
    optim::GradScaler* scaler = nullptr;             ///< none: the loss is not scaled
    std::function<bool()> stop_requested = nullptr;  ///< of this rank; asked once a step
    UpdateGuard* guard = nullptr;  ///< none: the first number that is not finite ends the run
  };
  TrainStep(const Parts& parts, const StepOptions& options);

  /// Forward and backward of every micro-batch, clipping, one update of the shards. Collective.
  /// Throws Error(kDiverged) on every rank, before anything is updated, when the loss is not finite, or the
  /// gradient norm is not and no lower loss scale is left to try; with a guard that skips such steps, when it
  /// has skipped too many in a row. Where updates_as_gradients_arrive(), weights may have been updated by
  /// then, and by a step that fails otherwise.
  StepResult run(const StepPosition& position);

  /// Whether units are updated within backward (train/arriving_gradients.h): gradients move to host memory,
  /// and without clipping, scaler and guard no update waits for the others.
  bool updates_as_gradients_arrive() const { return updates_as_gradients_arrive_; }

 private:
  struct MicroBatch {
    data::Batch batch;
    double divisor = 1;  ///< of its loss, so that the sum over a rank's is what ranks average
  };
  /// Adds the gradients of one micro-batch to the shards; returns its share of this rank's mean loss, a
  /// double on the device, which is not waited for.
  at::Tensor run_micro_batch(const MicroBatch& micro_batch);
  /// All of a step, where the shares depend on them. Collective.
  std::vector<MicroBatch> batches_with_shares(const StepPosition& position, int64_t micro_batches);
  void share_loss(double local_loss, StepResult& result);
  void update_shards(double lr, double gradient_scale);
  /// Asks the guard about a step that scaled gradients do not explain; whether to update.
  bool passes_guard(const StepPosition& position, double local_loss, bool finite, StepResult& result);
  [[noreturn]] void report_divergence(const StepPosition& position, double local_loss,
                                      const StepResult& result);
  /// "samples 64 to 127; the loss is not finite on rank 1". Collective.
  std::string whose_samples(const StepPosition& position, double local_loss);

  Parts parts_;
  StepOptions options_;
  bool updates_as_gradients_arrive_;
};

}  // namespace fsdp::train
