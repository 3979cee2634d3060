#include "run/train/train_step.h"

#include <limits>

#include "base/util/error.h"
#include "support/late_targets.h"
#include "support/train_step_fixture.h"

namespace fsdp::train {
namespace {

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
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
      EXPECT_NE(std::string(error.what()).find("at step 7"), std::string::npos);
    }
    EXPECT_TRUE(at::allclose(shard, before, 0, 0, /*equal_nan=*/true));
  });
}

/// What three steps leave on each rank.

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
      const bool is_first = communicator.rank() == 0;
      const auto count = [&] {
        if (!is_first) return;
        trained.loss_sum += last.loss_sum;
        trained.losses += last.losses;
      };
      for (int64_t step = 1; step <= 4; ++step) {
        last = ready.step->run({.step = step,
                                .first_global_sample = 8 * (step - 1),
                                .lr = 1e-2 / static_cast<double>(step),
                                .reads_outcome = step == 2});
        EXPECT_EQ(last.is_read, !options.may_read_late || step == 2);
        if (last.is_read) count();
        if (is_first && step == 2) trained.results.push_back(last);
      }
      const bool was_read = last.is_read;
      ready.step->read_outcome(last);
      if (!was_read) count();
      EXPECT_TRUE(last.is_read);
      if (is_first) trained.results.push_back(last);
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
    EXPECT_EQ(at_once.losses, 4);
    EXPECT_EQ(late.losses, 4);
    EXPECT_NEAR(late.loss_sum, at_once.loss_sum, 1e-12);
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
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
      const std::string text = error.what();
      EXPECT_NE(text.find("at step 7, samples 8 to 15 of the run"), std::string::npos) << text;
      EXPECT_NE(text.find("nan"), std::string::npos) << text;
      EXPECT_NE(text.find("the weights were not updated"), std::string::npos) << text;
    }
  });
}

TEST_F(TrainStepTest, AStepWithoutTargetsLaunchesNothingOnTheDevice) {
  testing::write_late_targets(folder_ / "late.bin", 16, 8, config_.data.sequence_length,
                              config_.model.vocab_size);
  config_.data.train = {folder_ / "late.bin"};
  config_.data.train_on = data::TrainOn::kAssistant;
  config_.data.shuffle = false;
  comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
    Ready ready = make(communicator, {.counts_vary = true, .may_read_late = true});
    ASSERT_TRUE(ready.step->reads_late());
    const at::Tensor shard = ready.engine->units()[0]->storage().shard(), first = shard.clone();
    StepResult result = ready.step->run({.step = 1, .first_global_sample = 0, .lr = 1e-2});
    EXPECT_TRUE(result.without_targets && result.skipped && result.is_read);
    EXPECT_TRUE(std::isnan(result.loss));
    EXPECT_TRUE(at::equal(shard, first));
    EXPECT_EQ(ready.optimizer->step_count(), 0);
    result = ready.step->run({.step = 2, .first_global_sample = 8, .lr = 1e-2});
    EXPECT_FALSE(result.without_targets);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_FALSE(at::equal(shard, first));
    // A divergence before it is reported by the step that reads.
    const at::Tensor good = shard.clone();
    shard.fill_(std::numeric_limits<float>::quiet_NaN());
    ready.step->run({.step = 3, .first_global_sample = 8, .lr = 1e-2, .reads_outcome = false});
    shard.copy_(good);
    EXPECT_THROW(ready.step->run({.step = 4, .first_global_sample = 0, .lr = 1e-2}), comm::AgreedError);
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
