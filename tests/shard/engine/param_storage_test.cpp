// Shards that are kept in 16 bits, without fp32 master weights.

#include <gtest/gtest.h>

#include "shard/engine/rank_checks.h"
#include "shard/state/full_parameters.h"
#include "support/chain_run.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::borrowed;
using testing::ChainRun;
using testing::ChainStage;
using testing::CountingCommunicator;
using testing::every_matrix;
using testing::RunPlan;
using testing::RunResult;

/// Kept and computed in one type.
ShardOptions kept_in(const char* type, ShardOptions options = every_matrix("implicit", "pre")) {
  options.param_storage = options.mixed_precision.param_dtype = type;
  return options;
}

/// Matrices whose values no 16-bit type holds.
void make_uneven(ChainStage& chain) {
  at::NoGradGuard no_grad;
  for (at::Tensor parameter : chain.parameters()) parameter.mul_(1.0 / 3).add_(0.1);
}

TEST(ParamStorage, ShardsAreInItRoundedToNearestAndSentAsTheyAre) {
  for (const char* name : {"bfloat16", "float16"}) {
    const at::ScalarType type = std::string(name) == "float16" ? at::kHalf : at::kBFloat16;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      CountingCommunicator calls(inner);
      ChainStage chain(2, 4);
      make_uneven(chain);
      const at::Tensor before = chain.layer(1).weight().detach().clone();
      auto engine = testing::shard_under_test(chain, kept_in(name), borrowed(calls));
      int64_t numel = 0;
      for (const auto& unit : engine->units()) {
        const UnitStorage& storage = unit->storage();
        EXPECT_EQ(storage.shard().scalar_type(), type);
        EXPECT_TRUE(storage.gather_input(storage.shard()).is_same(storage.shard())) << "no cast and no copy";
        numel += storage.shard().numel();
      }
      EXPECT_EQ(engine->shard_bytes(), 2 * numel);
      const at::Tensor half = before.view(-1).chunk(2)[inner.rank()].to(type);
      EXPECT_TRUE(at::equal(engine->units()[2]->storage().shard(), half));
      chain.forward(at::ones({2, 4})).sum().backward();
      for (const CountingCommunicator::Call& call : calls.calls()) {
        if (call.op == "all_gather" && call.unit != "execution order") {
          EXPECT_EQ(call.dtype, type) << call.unit;
        }
      }
      EXPECT_EQ(engine->units()[2]->storage().shard_gradient().scalar_type(), at::kFloat);
    });
  }
}

TEST(ParamStorage, InAGroupOfOneTheParametersAreTheShard) {
  for (const char* computed : {"bfloat16", "float32"}) {
    comm::SingleCommunicator communicator;
    ChainStage chain(2, 4);
    ShardOptions options = kept_in("bfloat16");
    options.mixed_precision.param_dtype = computed;
    auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
    const bool same = std::string(computed) == "bfloat16";
    for (const auto& unit : engine->units()) EXPECT_EQ(unit->storage().shard_is_unsharded(), same);
    chain.forward(at::ones({2, 4})).sum().backward();
    EXPECT_EQ(chain.layer(0).weight().scalar_type(), same ? at::kBFloat16 : at::kFloat);
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
  }
}

TEST(ParamStorage, LeavesOutWhatStaysFloat32) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    for (const char* computed : {"float32", "bfloat16"}) {
      auto model = testing::make_initialized(testing::tiny_options());
      ShardOptions options = kept_in("bfloat16");
      options.mixed_precision.param_dtype = computed;
      options.mixed_precision.keep_float32 = {"*norm*"};
      auto engine = testing::shard_under_test(*model, options, borrowed(communicator));
      for (const Segment& segment : engine->segments()) {
        const bool is_norm = segment.name.find("norm") != std::string::npos;
        EXPECT_EQ(engine->units()[segment.unit]->storage().shard().scalar_type(),
                  is_norm ? at::kFloat : at::kBFloat16)
            << segment.name;
      }
    }
  });
}

TEST(ParamStorage, StateDictsAndFullParametersAreInIt) {
  for (int world : {1, 2, 3}) {
    for (const char* layout : {"flat", "per_parameter"}) {
      comm::run_ranks_as_threads(world, [&](comm::Communicator& communicator) {
        ChainStage plain(2, 4), chain(2, 4);
        make_uneven(plain);
        make_uneven(chain);
        ShardOptions options = kept_in("bfloat16");
        options.layout = layout;
        auto engine = testing::shard_under_test(chain, options, borrowed(communicator));
        const auto values = plain.named_parameters();
        const FullStateDict full = full_state_dict(*engine);
        for (const auto& [name, tensor] : full) {
          EXPECT_TRUE(at::equal(tensor, values[name].to(at::kBFloat16))) << name;
        }
        {
          FullParameters whole(*engine, {.writeback = true});
          EXPECT_EQ(chain.layer(1).weight().scalar_type(), at::kBFloat16);
          at::NoGradGuard no_grad;
          chain.layer(1).weight().mul_(2);
        }
        EXPECT_TRUE(at::equal(full_state_dict(*engine)[2].tensor, full[2].tensor * 2));
        load_full_state_dict(*engine, full);
        EXPECT_TRUE(at::equal(full_state_dict(*engine)[2].tensor, full[2].tensor));
        load_full_state_dict(*engine, {{"bias", at::full({4}, 1.0 / 3)}}, /*strict=*/false);
        for (const auto& [name, tensor] : full_state_dict(*engine)) {
          if (name != "bias") continue;
          EXPECT_TRUE(at::equal(tensor, at::full({4}, 1.0 / 3).to(at::kBFloat16)));
        }
        load_full_state_dict(*engine, full);
        engine->unshard();
        EXPECT_EQ(chain.layer(1).weight().scalar_type(), at::kFloat);
        EXPECT_TRUE(at::equal(chain.layer(1).weight(), full[2].tensor.to(at::kFloat)));
        // Once more: what was rounded stays as it is.
        auto again = testing::shard_under_test(chain, options, borrowed(communicator));
        EXPECT_TRUE(at::equal(full_state_dict(*again)[2].tensor, full[2].tensor));
      });
    }
  }
}

TEST(ParamStorage, TrainsCloseToFp32InEveryStrategyAndWorld) {
  RunPlan plan;
  plan.shard.min_num_params = 400;
  plan.learning_rate = 0.01;
  plan.steps = 4;
  plan.optimizer = optim::OptimizerOptions{};
  const RunResult expected = train_unsharded(plan);
  plan.shard.param_storage = "bfloat16";
  for (const char* computed : {"bfloat16", "float32"}) {
    plan.shard.mixed_precision.param_dtype = computed;
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
      plan.shard.strategy = strategy;
      for (int world : {1, 2, 3}) {
        for (bool offload : {false, true}) {
          plan.shard.cpu_offload = offload;
          const RunResult run = train_sharded(world, plan);
          for (size_t i = 0; i < run.losses.size(); ++i) {
            EXPECT_NEAR(run.losses[i], expected.losses[i], 0.01 * expected.losses[i])
                << computed << ", " << strategy << ", " << world << " ranks, offload " << offload;
          }
        }
      }
    }
  }
}

TEST(ParamStorage, ReplicasStayEqualBitForBit) {
  for (const char* strategy : {"hybrid_shard", "no_shard"}) {
    for (const char* layout : {"flat", "per_parameter"}) {
      comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
        auto model = testing::make_initialized(testing::tiny_options());
        ShardOptions options = kept_in("float16");
        options.strategy = strategy;
        options.layout = layout;
        const bool hybrid = is_hybrid(options.strategy);
        auto engine =
            fully_shard(*model, options, comm::Mesh({.dcn = hybrid ? 2 : 1}, borrowed(communicator)));
        const optim::OptimizerOptions update;
        auto optimizer = optim::make_optimizer(update, optim::flat_parameters(*engine, update));
        for (int step = 0; step < 3; ++step) {
          engine->zero_gradients();
          testing::loss_of(*model, testing::token_rows(communicator.rank(), 2, 9, 17)).backward();
          optimizer->step(optim::shard_gradients(*engine), 0.01);
        }
        EXPECT_NO_THROW(require_equal_replicas(*engine, "after three steps")) << strategy << layout;
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::shard
