#pragma once

// One optimizer step: the heart of the toolkit, short enough to read whole. lib/README.md walks through it.

#include <cstdint>

#include "data/loader.h"
#include "nn/stage.h"
#include "optim/optimizer.h"
#include "shard/engine.h"

namespace fsdp::train {

struct StepOptions {
  int64_t gradient_accumulation_steps = 1;
  double max_grad_norm = 1.0;  ///< 0: no clipping
  double norm_type = 2.0;
};

/// Where a step stands in the run.
struct StepPosition {
  int64_t step = 1;                 ///< 1-based, for messages
  int64_t first_global_sample = 0;  ///< the run's sample position before the step
  double lr = 0.0;
};

struct StepResult {
  double loss = 0.0;       ///< mean over all tokens of the global batch, in nats
  double grad_norm = 0.0;  ///< before clipping
};

class TrainStep {
 public:
  /// The references must outlive the object; `model` is what `engine` shards.
  TrainStep(nn::Stage& model, shard::Engine& engine, optim::Optimizer& optimizer,
            const data::TrainLoader& loader, const StepOptions& options);

  /// Forward and backward of every micro-batch, clipping, one update of the shards. Collective.
  /// Throws Error(kDiverged) on every rank, before anything is updated, when loss or norm is not finite.
  StepResult run(const StepPosition& position);

 private:
  /// Adds the gradients of one micro-batch to the shards; returns its share of this rank's mean loss.
  double run_micro_batch(const StepPosition& position, int64_t micro_step);
  void update_shards(double lr);

  nn::Stage& model_;
  shard::Engine& engine_;
  optim::Optimizer& optimizer_;
  const data::TrainLoader& loader_;
  StepOptions options_;
};

/// The mean over ranks of one number a rank. Collective.
double mean_over_ranks(comm::Communicator& communicator, double value, const char* what);

}  // namespace fsdp::train
