// Updates of units as their gradients arrive: the bits of those after backward, and where they must wait.

#include <limits>
#include <tuple>

#include "base/util/error.h"
#include "support/train_step_fixture.h"

namespace fsdp::train {
namespace {

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

/// A limit that no gradient reaches, so that the numbers are those without clipping; but updates wait for the
/// norm.
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
              concat(strategy, ", ", ranks, " ranks, ", type, ", accumulation ", accumulation));
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
    expect_same(train(2, options), expected, concat("norm type ", norm_type));
  }
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
        EXPECT_EQ(error.kind(), ErrorKind::kDiverged);
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

}  // namespace
}  // namespace fsdp::train
