// Copies of shards in the type of the gathers, beside fp32 master weights.

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "shard/state/full_parameters.h"
#include "shard/state/state_dict.h"
#include "state/optim/engine_shards.h"
#include "support/chain_run.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::ChainStage;
using testing::CountingCommunicator;
using testing::every_matrix;
using testing::RunPlan;
using testing::RunResult;

ShardOptions keeping(const char* type) {
  ShardOptions options = every_matrix("implicit", "pre");
  options.mixed_precision.param_dtype = type;
  options.mixed_precision.keep_low_precision_shards = true;
  return options;
}

const kernels::LowPrecisionCopy& copy_of(const Unit& unit) { return *unit.storage().low_precision_shard(); }

at::Tensor cast_shard(const Unit& unit) {
  return unit.storage().shard().to(copy_of(unit).values().scalar_type());
}

TEST(LowPrecisionShards, AreWhatGathersSend) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    CountingCommunicator calls(inner);
    ChainStage chain(2, 4);
    auto engine = testing::shard_under_test(chain, keeping("bfloat16"), borrowed(calls));
    chain.forward(at::ones({2, 4})).sum().backward();
    for (const auto& unit : engine->units()) {
      const UnitStorage& storage = unit->storage();
      if (storage.layout().numel() == 0) continue;
      EXPECT_TRUE(copy_of(*unit).is_current());
      EXPECT_TRUE(at::equal(storage.source(), cast_shard(*unit)));
      EXPECT_TRUE(storage.gather_input(storage.source()).is_same(copy_of(*unit).values())) << "no cast";
    }
    EXPECT_EQ(2 * engine->source_bytes(), engine->shard_bytes());
  });
}

// Whatever the optimizer, a step leaves copies that need no further cast, also of elements that it does not
// update.
TEST(LowPrecisionShards, AreWrittenByOptimizers) {
  for (const char* name : {"adamw", "lion", "sgd", "lamb", "adafactor", "muon"}) {
    for (bool fused : {true, false}) {
      for (const char* type : {"bfloat16", "float16"}) {
        SCOPED_TRACE(concat(name, fused ? ", fused, " : ", ", type));
        comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
          ChainStage chain(2, 5);
          auto engine = testing::shard_under_test(chain, keeping(type), borrowed(communicator));
          optim::OptimizerOptions options;
          options.name = name;
          options.fused = fused;
          options.momentum = 0.9;
          optim::ShardedMatrices matrices(*engine, options);
          auto optimizer =
              optim::make_optimizer(options, optim::flat_parameters(*engine, options), &matrices);
          for (int step = 0; step < 2; ++step) {
            chain.forward(at::ones({2, 5})).sum().backward();
            optimizer->step(optim::shard_gradients(*engine), 0.1);
            for (const auto& unit : engine->units()) {
              if (unit->storage().layout().numel() == 0) continue;
              EXPECT_TRUE(copy_of(*unit).is_current());
              EXPECT_TRUE(at::equal(copy_of(*unit).values(), cast_shard(*unit)));
            }
            engine->zero_gradients();
          }
        });
      }
    }
  }
}

TEST(LowPrecisionShards, FollowWhatOthersWrite) {
  for (int world : {1, 2}) {
    comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
      ChainStage chain(2, 4);
      auto engine = testing::shard_under_test(chain, keeping("bfloat16"), borrowed(communicator));
      const auto expect_current_weights = [&] {
        at::NoGradGuard no_grad;
        const at::Tensor y = chain.forward(at::ones({1, 4}));
        for (const auto& unit : engine->units()) {
          if (unit->storage().layout().numel() == 0) continue;
          EXPECT_TRUE(at::equal(copy_of(*unit).values(), cast_shard(*unit)));
        }
        return y;
      };
      const at::Tensor first = expect_current_weights();
      {
        FullParameters whole(*engine, {.writeback = true});
        at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : chain.parameters()) at::Tensor(parameter).mul_(2);
      }
      const at::Tensor second = expect_current_weights();
      EXPECT_FALSE(at::equal(first, second));
      const FullStateDict saved = full_state_dict(*engine);
      torch::optim::SGD sgd(optim::parameters(*engine), torch::optim::SGDOptions(0.1));
      chain.forward(at::ones({2, 4})).sum().backward();
      sgd.step();
      engine->zero_gradients();
      EXPECT_FALSE(at::equal(second, expect_current_weights()));
      load_full_state_dict(*engine, saved);
      EXPECT_TRUE(at::equal(second, expect_current_weights()));
    });
  }
}

TEST(LowPrecisionShards, ChangeNoNumber) {
  for (int world : {1, 2}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      for (const char* optimizer : {"", "adamw"}) {
        RunPlan plan;
        plan.shard.min_num_params = 1;
        plan.shard.strategy = strategy;
        plan.shard.mixed_precision.param_dtype = "bfloat16";
        plan.accumulation = 2;
        if (*optimizer != '\0') plan.optimizer = optim::OptimizerOptions{.name = optimizer};
        const RunResult cast_in_gathers = testing::train_sharded(world, plan);
        plan.shard.mixed_precision.keep_low_precision_shards = true;
        testing::expect_identical_runs(testing::train_sharded(world, plan), cast_in_gathers,
                                       concat(strategy, ", ", world, " ranks, ", optimizer));
      }
    }
  }
}

// Adapters need no copies of the weights that never change.
TEST(LowPrecisionShards, AreNotKeptOfFrozenModels) {
  ShardOptions options = keeping("bfloat16");
  EXPECT_TRUE(unit_options(options, "layers.0", false, {}).storage.keeps_low_precision_shard);
  options.trained_apart = true;
  EXPECT_FALSE(unit_options(options, "layers.0", false, {}).storage.keeps_low_precision_shard);
  options.trained_apart = false;
  options.param_storage = "bfloat16";
  EXPECT_FALSE(unit_options(options, "layers.0", false, {}).storage.keeps_low_precision_shard);
}

}  // namespace
}  // namespace fsdp::shard
