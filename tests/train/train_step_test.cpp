#include "train/train_step.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "nn/loss.h"
#include "optim/engine_shards.h"
#include "shard/fully_shard.h"
#include "support/sharded_run.h"
#include "support/tiny_config.h"
#include "util/error.h"

namespace fsdp::train {
namespace {

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
        TrainStep::Parts{*ready.model, *ready.engine, *ready.optimizer, *ready.loader, ready.scaler.get(),
                         nullptr, ready.guard.get()},
        options);
    return ready;
  }

  testing::TemporaryFolder folder_;
  config::Config config_ = testing::tiny_config(folder_);
};

TEST_F(TrainStepTest, ReportsTheMeanLossOfTheGlobalBatch) {
  config_.data.shuffle = false;
  double expected = 0;
  {
    auto model = testing::make_initialized(config_.model);
    data::TrainLoader all(config_.data, config_.model.vocab_size, 1, {.gradient_accumulation_steps = 4});
    for (int64_t micro = 0; micro < 4; ++micro) {
      data::Batch batch = all.batch(0, micro);
      expected += nn::next_token_loss(model->forward(batch.inputs), batch.targets).item<double>() / 4;
    }
  }
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {.gradient_accumulation_steps = 2});
    StepResult result = ready.step->run({.step = 1, .first_global_sample = 0, .lr = 1e-3});
    EXPECT_NEAR(result.loss, expected, 1e-6);
    EXPECT_GT(result.grad_norm, 0);
    EXPECT_EQ(ready.engine->live_unsharded_bytes(), 0);
  });
}

TEST_F(TrainStepTest, DoesNotUpdateWhenTheLossIsNotFinite) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {});
    at::Tensor shard = ready.engine->units()[0]->storage().shard();
    if (communicator.rank() == 1) shard.fill_(std::numeric_limits<float>::quiet_NaN());
    at::Tensor before = shard.clone();
    try {
      ready.step->run({.step = 7, .first_global_sample = 0, .lr = 1.0});
      ADD_FAILURE() << "rank " << communicator.rank() << " went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kDiverged);
      EXPECT_NE(std::string(error.what()).find("at step 7"), std::string::npos);
    }
    EXPECT_TRUE(at::allclose(shard, before, 0, 0, /*equal_nan=*/true));
  });
}

/// What three steps leave on each rank.
struct Trained {
  std::vector<StepResult> results;
  std::vector<std::vector<at::Tensor>> tensors;  ///< [rank] shards and optimizer states
  bool updated_as_gradients_arrived = false;
};

void expect_same(const Trained& found, const Trained& expected, const std::string& what) {
  ASSERT_EQ(found.results.size(), expected.results.size());
  for (size_t step = 0; step < found.results.size(); ++step) {
    EXPECT_EQ(found.results[step].loss, expected.results[step].loss) << what << ", step " << step;
    EXPECT_EQ(found.results[step].grad_norm, expected.results[step].grad_norm) << what << ", step " << step;
  }
  for (size_t rank = 0; rank < found.tensors.size(); ++rank) {
    ASSERT_EQ(found.tensors[rank].size(), expected.tensors[rank].size());
    for (size_t i = 0; i < found.tensors[rank].size(); ++i) {
      EXPECT_TRUE(at::equal(found.tensors[rank][i], expected.tensors[rank][i])) << what << ", tensor " << i;
    }
  }
}

/// A limit that no gradient reaches, so that the numbers are those without clipping; but updates wait for the norm.
constexpr double kNoLimit = 1e30;

class UpdateOnArrivalTest : public TrainStepTest {
 protected:
  Trained train(int ranks, const StepOptions& options) {
    const auto world = static_cast<size_t>(ranks);
    Trained trained{.results = {}, .tensors = std::vector<std::vector<at::Tensor>>(world)};
    comm::run_ranks_as_threads(ranks, [&](comm::Communicator& communicator) {
      Ready ready = make(communicator, options);
      for (int64_t step = 1; step <= 3; ++step) {
        const StepResult result = ready.step->run(
            {.step = step, .first_global_sample = 8 * (step - 1), .lr = 1e-2 / static_cast<double>(step)});
        if (communicator.rank() == 0) trained.results.push_back(result);
      }
      EXPECT_EQ(ready.optimizer->step_count(), 3);
      const bool updated_early = ready.step->updates_as_gradients_arrive();
      auto& tensors = trained.tensors[static_cast<size_t>(communicator.rank())];
      for (size_t i = 0; i < ready.engine->units().size(); ++i) {
        const shard::UnitStorage& storage = ready.engine->units()[i]->storage();
        EXPECT_EQ(ready.optimizer->parameter_step_count(i), 3);
        EXPECT_EQ(storage.shard_gradient().defined(), !updated_early) << "unit " << i;
        tensors.push_back(storage.shard().clone());
        for (const std::string& name : ready.optimizer->state_names()) {
          tensors.push_back(ready.optimizer->state(name, i).clone());
        }
      }
      if (communicator.rank() == 0) trained.updated_as_gradients_arrived = updated_early;
    });
    return trained;
  }

  void expect_no_bit_to_change(int ranks, StepOptions options, const std::string& what) {
    options.max_grad_norm = kNoLimit;
    const Trained after_backward = train(ranks, options);
    EXPECT_FALSE(after_backward.updated_as_gradients_arrived);
    options.max_grad_norm = 0;
    const Trained on_arrival = train(ranks, options);
    EXPECT_TRUE(on_arrival.updated_as_gradients_arrived);
    expect_same(on_arrival, after_backward, what);
  }
};

TEST_F(UpdateOnArrivalTest, ChangesNoBitWithAnyOptimizer) {
  config_.optimizer.ema_decay = 0.9;
  for (const char* optimizer : {"adamw", "adam", "sgd", "lion", "adagrad", "adadelta", "adamax"}) {
    for (double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
      config_.optimizer.name = optimizer;
      expect_no_bit_to_change(
          2, {.gradient_accumulation_steps = 2, .norm_type = norm_type, .no_sync = norm_type == 2},
          optimizer);
    }
  }
}

TEST_F(UpdateOnArrivalTest, ChangesNoBitWithAnyStrategy) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (int ranks : {1, 2}) {
      for (const char* type : {"float32", "bfloat16"}) {
        for (int64_t accumulation : {1, 2}) {
          config_.fsdp.strategy = strategy;
          config_.fsdp.param_storage = config_.mixed_precision.param_dtype = type;
          config_.model.tie_word_embeddings = accumulation == 2;
          expect_no_bit_to_change(
              ranks, {.gradient_accumulation_steps = accumulation},
              util::concat(strategy, ", ", ranks, " ranks, ", type, ", accumulation ", accumulation));
        }
      }
    }
  }
}

TEST_F(UpdateOnArrivalTest, NormsOnArrivalAreThoseAfterBackward) {
  for (double norm_type : {2.0, std::numeric_limits<double>::infinity()}) {
    const StepOptions options{
        .gradient_accumulation_steps = 2, .max_grad_norm = 0.05, .norm_type = norm_type};
    config_.fsdp.cpu_offload = config_.fsdp.move_grads_to_cpu = false;
    const Trained expected = train(2, options);
    config_.fsdp.cpu_offload = config_.fsdp.move_grads_to_cpu = true;
    expect_same(train(2, options), expected, util::concat("norm type ", norm_type));
  }
}

TEST_F(TrainStepTest, ClipsEachElementOfTheGradientWhateverTheLossScale) {
  config_.optimizer.name = "sgd";
  const auto moved = [&](double clip_grad_value, double loss_scale) {
    std::vector<at::Tensor> moves_of_units;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Ready ready = make(communicator, {.max_grad_norm = 0, .clip_grad_value = clip_grad_value}, loss_scale);
      EXPECT_EQ(ready.step->updates_as_gradients_arrive(), loss_scale == 0);
      std::vector<at::Tensor> before;
      for (const auto& unit : ready.engine->units()) before.push_back(unit->storage().shard().clone());
      ready.step->run({.step = 1, .first_global_sample = 0, .lr = 1.0});
      if (communicator.rank() != 0) return;
      for (size_t i = 0; i < before.size(); ++i) {
        moves_of_units.push_back(before[i] - ready.engine->units()[i]->storage().shard());
      }
    });
    return at::cat(moves_of_units);
  };
  const double limit = 1e-3;
  const at::Tensor gradient = moved(0, 0), expected = gradient.clamp(-limit, limit);
  EXPECT_GT(gradient.abs().max().item<double>(), 2 * limit);
  for (double loss_scale : {0.0, 1024.0}) {
    // The weights round the differences.
    EXPECT_TRUE(moved(limit, loss_scale).allclose(expected, 0, 2e-7)) << loss_scale;
  }
}

TEST_F(TrainStepTest, ReadsLossAndNormLateWithoutAnotherResult) {
  const auto train = [&](const StepOptions& options) {
    Trained trained{.results = {}, .tensors = std::vector<std::vector<at::Tensor>>(2)};
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Ready ready = make(communicator, options);
      EXPECT_EQ(ready.step->reads_late(), options.may_read_late);
      StepResult last;
      for (int64_t step = 1; step <= 4; ++step) {
        last = ready.step->run({.step = step,
                                .first_global_sample = 8 * (step - 1),
                                .lr = 1e-2 / static_cast<double>(step),
                                .reads_outcome = step == 2});
        EXPECT_EQ(last.is_read, !options.may_read_late || step == 2);
        if (communicator.rank() == 0 && step == 2) trained.results.push_back(last);
      }
      ready.step->read_outcome(last);
      EXPECT_TRUE(last.is_read);
      if (communicator.rank() == 0) trained.results.push_back(last);
      auto& tensors = trained.tensors[static_cast<size_t>(communicator.rank())];
      for (const auto& unit : ready.engine->units()) tensors.push_back(unit->storage().shard().clone());
    });
    return trained;
  };
  for (const auto& [max_grad_norm, norm_type, clip_value] :
       {std::tuple{0.0, 2.0, 0.0}, {0.05, 2.0, 0.0}, {0.05, 3.0, 0.0}, {0.05, 2.0, 1e-4}}) {
    StepOptions options{.gradient_accumulation_steps = 2,
                        .max_grad_norm = max_grad_norm,
                        .norm_type = norm_type,
                        .clip_grad_value = clip_value};
    const Trained at_once = train(options);
    options.may_read_late = true;
    const Trained late = train(options);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(late.results[i].loss, at_once.results[i].loss, 1e-12);
      EXPECT_NEAR(late.results[i].grad_norm, at_once.results[i].grad_norm, 1e-9);
      for (size_t unit = 0; unit < at_once.tensors[i].size(); ++unit) {
        EXPECT_TRUE(at::allclose(late.tensors[i][unit], at_once.tensors[i][unit], 1e-6, 1e-8));
      }
    }
  }
}

TEST_F(TrainStepTest, ADivergenceThatIsReadLateHasUpdatedNothing) {
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {.may_read_late = true});
    const at::Tensor shard = ready.engine->units()[0]->storage().shard();
    StepResult last = ready.step->run(
        {.step = 6, .first_global_sample = 0, .lr = 1e-3, .samples = 8, .reads_outcome = false});
    const at::Tensor good = shard.clone();
    if (communicator.rank() == 1) shard[0] = std::numeric_limits<float>::quiet_NaN();
    last = ready.step->run(
        {.step = 7, .first_global_sample = 8, .lr = 1e-3, .samples = 8, .reads_outcome = false});
    shard.copy_(good);  // the next step is finite again, and must not update either
    last = ready.step->run(
        {.step = 8, .first_global_sample = 16, .lr = 1e-3, .samples = 8, .reads_outcome = false});
    EXPECT_TRUE(at::equal(shard, good));
    try {
      ready.step->read_outcome(last);
      ADD_FAILURE() << "rank " << communicator.rank() << " went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kDiverged);
      const std::string text = error.what();
      EXPECT_NE(text.find("at step 7, samples 8 to 15 of the run"), std::string::npos) << text;
      EXPECT_NE(text.find("nan"), std::string::npos) << text;
      EXPECT_NE(text.find("the weights were not updated"), std::string::npos) << text;
    }
  });
}

TEST_F(TrainStepTest, WhatTheHostDecidesIsNotReadLate) {
  comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(make(communicator, {.may_read_late = true}).step->reads_late());
    EXPECT_FALSE(make(communicator, {}).step->reads_late());
    EXPECT_FALSE(make(communicator, {.norm_type = infinity, .may_read_late = true}).step->reads_late());
    EXPECT_FALSE(make(communicator, {.may_read_late = true}, /*loss_scale=*/8).step->reads_late());
    config_.fsdp.cpu_offload = true;
    EXPECT_FALSE(make(communicator, {.may_read_late = true}).step->reads_late());
  });
}

TEST_F(TrainStepTest, SaysWhetherADivergenceHasReachedTheWeights) {
  for (double max_grad_norm : {0.0, 1.0}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Ready ready = make(communicator, {.max_grad_norm = max_grad_norm});
      at::Tensor shard = ready.engine->units()[0]->storage().shard();
      if (communicator.rank() == 1) shard.fill_(std::numeric_limits<float>::quiet_NaN());
      try {
        ready.step->run({.step = 7, .first_global_sample = 0, .lr = 1.0});
        ADD_FAILURE() << "rank " << communicator.rank() << " went on";
      } catch (const comm::AgreedError& error) {
        EXPECT_EQ(error.kind(), util::ErrorKind::kDiverged);
        EXPECT_NE(std::string(error.what()).find("unit "), std::string::npos) << error.what();
        EXPECT_EQ(std::string(error.what()).find("the weights were not updated") == std::string::npos,
                  max_grad_norm == 0)
            << error.what();
      }
      EXPECT_EQ(ready.optimizer->step_count(), max_grad_norm == 0 ? 1 : 0);
      if (max_grad_norm > 0) return;
      EXPECT_THROW(ready.optimizer->step(optim::shard_gradients(*ready.engine), 1.0), util::Error);
    });
  }
}

TEST_F(TrainStepTest, LeavesUpdatesToTheEndWhereSomethingIsToBeKnownFirst) {
  comm::run_ranks_as_threads(1, [&](comm::Communicator& communicator) {
    EXPECT_TRUE(make(communicator, {.max_grad_norm = 0}).step->updates_as_gradients_arrive());
    EXPECT_FALSE(make(communicator, {.max_grad_norm = 1}).step->updates_as_gradients_arrive());
    EXPECT_FALSE(make(communicator, {.max_grad_norm = 0}, 1024).step->updates_as_gradients_arrive());
    const StepOptions late{.max_grad_norm = 0, .may_read_late = true};
    EXPECT_FALSE(make(communicator, late).step->updates_as_gradients_arrive());
    config_.training.skip_nonfinite = true;
    EXPECT_FALSE(make(communicator, {.max_grad_norm = 0}).step->updates_as_gradients_arrive());
  });
}

TEST_F(TrainStepTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  config_.mixed_precision.param_dtype = "float16";
  config_.model.fused_kernels = false;  // whose gradients pass by no hook
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {}, 1024);
    const auto& units = ready.engine->units();
    auto shards = [&] {
      std::vector<at::Tensor> copies;
      for (const auto& unit : units) copies.push_back(unit->storage().shard().clone());
      return copies;
    };
    bool overflow = communicator.rank() == 1;
    ready.model->parameters()[0].register_hook([&](const at::Tensor& gradient) {
      return overflow ? gradient * std::numeric_limits<float>::infinity() : gradient;
    });
    auto before = shards();
    StepResult result = ready.step->run({.step = 1, .first_global_sample = 0, .lr = 1e-2});
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_EQ(ready.scaler->scale(), 512);
    auto after = shards();
    for (size_t i = 0; i < units.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;

    overflow = false;
    result = ready.step->run({.step = 2, .first_global_sample = 4, .lr = 1e-2});
    EXPECT_FALSE(result.skipped);
    EXPECT_TRUE(std::isfinite(result.grad_norm));
    EXPECT_EQ(ready.scaler->scale(), 512);
    after = shards();
    for (size_t i = 0; i < units.size(); ++i) EXPECT_FALSE(at::equal(before[i], after[i])) << i;
  });
}

TEST_F(TrainStepTest, AnOverflowAtTheLowestScaleIsADivergenceThatNamesTheUnit) {
  config_.mixed_precision.param_dtype = "float16";
  config_.model.fused_kernels = false;  // whose gradients pass by no hook
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {}, 1);
    ready.model->parameters()[0].register_hook(
        [](const at::Tensor& gradient) { return gradient * std::numeric_limits<float>::infinity(); });
    try {
      ready.step->run({.step = 3, .first_global_sample = 0, .lr = 1e-2});
      ADD_FAILURE() << "went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kDiverged);
      EXPECT_NE(std::string(error.what()).find("at step 3"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("unit root"), std::string::npos) << error.what();
    }
  });
}

std::vector<at::Tensor> shards_of(const shard::Engine& engine) {
  std::vector<at::Tensor> copies;
  for (const auto& unit : engine.units()) copies.push_back(unit->storage().shard().clone());
  return copies;
}

void expect_equal_shards(const shard::Engine& engine, const std::vector<at::Tensor>& expected, bool equal) {
  const std::vector<at::Tensor> found = shards_of(engine);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(at::equal(found[i], expected[i]), equal) << i;
}

TEST_F(TrainStepTest, SkipsStepsThatAreNotFiniteUntilTooManyAreInARow) {
  config_.training.skip_nonfinite = true;
  config_.training.max_skipped_steps = 2;
  config_.model.fused_kernels = false;  // whose gradients pass by no hook
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {});
    bool bad = communicator.rank() == 1;
    ready.model->parameters()[0].register_hook([&](const at::Tensor& gradient) {
      return bad ? gradient * std::numeric_limits<float>::quiet_NaN() : gradient;
    });
    auto run = [&](int64_t step) {
      return ready.step->run({.step = step, .first_global_sample = 4 * (step - 1), .lr = 1e-2, .samples = 4});
    };
    const std::vector<at::Tensor> first = shards_of(*ready.engine);
    for (int64_t step : {1, 2}) {
      StepResult result = run(step);
      EXPECT_TRUE(result.skipped);
      EXPECT_NE(result.skip_reason.find("is not finite"), std::string::npos) << result.skip_reason;
      expect_equal_shards(*ready.engine, first, true);
    }
    bad = false;
    EXPECT_FALSE(run(3).skipped);
    expect_equal_shards(*ready.engine, first, false);
    EXPECT_EQ(ready.optimizer->step_count(), 1);

    bad = communicator.rank() == 1;
    const std::vector<at::Tensor> third = shards_of(*ready.engine);
    for (int64_t step : {4, 5}) EXPECT_TRUE(run(step).skipped);
    try {
      run(6);
      ADD_FAILURE() << "went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), util::ErrorKind::kDiverged);
      const std::string message = error.what();
      for (const char* part :
           {"at step 6, samples 20 to 23 of the run", "unit root", "skipped step 3 in a row"}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    }
    expect_equal_shards(*ready.engine, third, true);
  });
}

TEST_F(TrainStepTest, NamesTheRankWhoseLossIsNotFinite) {
  config_.fsdp.strategy = "no_shard";
  comm::run_ranks_as_threads(3, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {});
    at::Tensor shard = ready.engine->units()[0]->storage().shard();
    if (communicator.rank() == 2) shard.fill_(std::numeric_limits<float>::quiet_NaN());
    try {
      ready.step->run({.step = 1, .first_global_sample = 0, .lr = 1.0, .samples = 6});
      ADD_FAILURE() << "went on";
    } catch (const comm::AgreedError& error) {
      EXPECT_NE(std::string(error.what()).find("samples 0 to 5 of the run, loss not finite on rank 2:"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST_F(TrainStepTest, SkipsASpikeAndGoesOn) {
  config_.training.skip_zscore = 20;
  config_.model.fused_kernels = false;  // whose gradients pass by no hook
  config_.training.skip_window = 4;
  config_.training.max_skipped_steps = 1;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {});
    double factor = 1;
    ready.model->parameters()[0].register_hook([&](const at::Tensor& gradient) { return gradient * factor; });
    auto run = [&](int64_t step) {
      return ready.step->run({.step = step, .first_global_sample = 4 * (step - 1), .lr = 1e-3, .samples = 4});
    };
    factor = 1e4;
    EXPECT_FALSE(run(1).skipped) << "there is nothing to compare with";
    factor = 1;
    for (int64_t step = 2; step <= 6; ++step) EXPECT_FALSE(run(step).skipped) << step;
    // On both ranks, or the mean of the gradients would be another one.
    factor = 1e4;
    const std::vector<at::Tensor> before = shards_of(*ready.engine);
    StepResult result = run(7);
    EXPECT_TRUE(result.skipped);
    EXPECT_NE(result.skip_reason.find("its gradient norm "), std::string::npos) << result.skip_reason;
    expect_equal_shards(*ready.engine, before, true);
    EXPECT_THROW(run(8), comm::AgreedError);
    factor = 1;
    EXPECT_FALSE(run(9).skipped);
    expect_equal_shards(*ready.engine, before, false);
  });
}

// What is divided out of the gradients was multiplied in: powers of two round nothing in fp32.
TEST_F(TrainStepTest, TheLossScaleDoesNotChangeWhatIsLearnt) {
  std::map<double, std::vector<at::Tensor>> weights;
  for (double scale : {0.0, 1.0, 4096.0}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      Ready ready = make(communicator, {.gradient_accumulation_steps = 2}, scale);
      for (int64_t step = 1; step <= 3; ++step) {
        ready.step->run({.step = step, .first_global_sample = 8 * (step - 1), .lr = 1e-2});
      }
      if (communicator.rank() != 0) return;
      for (const auto& unit : ready.engine->units()) weights[scale].push_back(unit->storage().shard());
    });
  }
  for (size_t i = 0; i < weights[0].size(); ++i) {
    EXPECT_TRUE(at::equal(weights[1][i], weights[0][i])) << i;
    EXPECT_TRUE(at::allclose(weights[4096][i], weights[0][i], 1e-5, 1e-7)) << i;
  }
}

}  // namespace
}  // namespace fsdp::train
