#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "model/nn/loss.h"
#include "run/train/train_step.h"
#include "shard/engine/fully_shard.h"
#include "state/optim/engine_shards.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"

namespace fsdp::train {

/// What some steps leave behind.
struct Trained {
  std::vector<StepResult> results;
  std::vector<std::vector<at::Tensor>> tensors;  ///< [rank] shards and optimizer states
  bool updated_as_gradients_arrived = false;
  double loss_sum = 0;  ///< of all losses that were read
  int64_t losses = 0;
};

/// Steps of a tiny model on threads as ranks.
class TrainStepTest : public ::testing::Test {
 protected:
  struct Ready {
    std::shared_ptr<nn::Stage> model;
    std::shared_ptr<shard::Engine> engine;
    std::unique_ptr<optim::Optimizer> optimizer;
    std::unique_ptr<optim::GradScaler> scaler;
    std::unique_ptr<UpdateGuard> guard;
    std::unique_ptr<data::TrainLoader> loader;
    std::unique_ptr<TrainStep> step;
  };

  /// loss_scale 0: none.
  Ready make(comm::Communicator& communicator, const StepOptions& options, double loss_scale = 0) {
    Ready ready;
    if (loss_scale > 0) {
      ready.scaler = std::make_unique<optim::GradScaler>(optim::GradScalerOptions{.init_scale = loss_scale});
    }
    if (config_.training.may_skip_updates()) {
      ready.guard = std::make_unique<UpdateGuard>(config_.training);
    }
    ready.model = testing::make_initialized(config_.model);
    ready.engine =
        shard::fully_shard(*ready.model, config::shard_options(config_), testing::borrowed(communicator));
    ready.optimizer =
        optim::make_optimizer(config_.optimizer, optim::flat_parameters(*ready.engine, config_.optimizer));
    ready.loader = std::make_unique<data::TrainLoader>(
        config_.data, config_.model.vocab_size, 1,
        data::Placement{communicator.rank(), communicator.world_size(), options.gradient_accumulation_steps});
    ready.step = std::make_unique<TrainStep>(
        TrainStep::StepParts{*ready.model, *ready.engine, *ready.optimizer, *ready.loader, ready.scaler.get(),
                             nullptr, ready.guard.get()},
        options);
    return ready;
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

}  // namespace fsdp::train
