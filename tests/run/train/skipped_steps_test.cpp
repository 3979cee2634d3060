// Steps that update nothing: overflows, losses that are not finite, spikes.

#include <limits>

#include "base/util/error.h"
#include "support/train_step_fixture.h"

namespace fsdp::train {
namespace {

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
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
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
      EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
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

}  // namespace
}  // namespace fsdp::train
