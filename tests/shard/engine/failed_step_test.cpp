// A step that throws: Engine::reset() frees its memory, and the next step is correct.

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "shard/engine/reduce/sample_reduction.h"
#include "support/chain_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::identical;

/// Every way to schedule units, plain and recomputed.
void for_each_schedule(const std::function<void(const ShardOptions&, const testing::Names&)>& body) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* prefetch : {"none", "implicit", "explicit"}) {
      for (const testing::Names& recompute : {testing::Names{}, testing::Names{"block"}}) {
        ShardOptions options = every_matrix(prefetch, *prefetch == 'n' ? "none" : "pre");
        options.strategy = strategy;
        if (options.strategy == "no_shard" && options.forward_prefetch == "explicit") continue;
        options.limit_all_gathers = options.forward_prefetch == "none" || options.strategy == "no_shard";
        body(options, recompute);
      }
    }
  }
}

/// Lets `fail` spoil a step at unit `place` and checks the step after reset(), in a first and a later step.
void expect_recovery(const std::function<void(ChainRun& run, size_t place)>& fail) {
  for_each_schedule([&](const ShardOptions& options, const testing::Names& recompute) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainRun good(communicator, options, 4, recompute);
      std::vector<at::Tensor> expected = good.gradients_of_a_step();
      ChainRun run(communicator, options, 4, recompute);
      for (size_t place : {0u, 2u, 3u, 1u}) {
        fail(run, place);
        run.engine->reset();
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
        EXPECT_FALSE(run.engine->has_unreduced_gradients());
        for (const auto& unit : run.engine->units()) EXPECT_EQ(unit->state(), Unit::State::kSharded);
        EXPECT_TRUE(identical(run.gradients_of_a_step(), expected))
            << options.strategy << options.forward_prefetch << place;
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
      }
    });
  });
}

TEST(FailedStep, InForwardIsForgottenByReset) {
  expect_recovery([](ChainRun& run, size_t place) {
    run.chain.layer(place).throws = true;
    EXPECT_THROW(run.chain.forward(run.input()), std::runtime_error);
    run.chain.layer(place).throws = false;
  });
}

TEST(FailedStep, InBackwardIsForgottenByReset) {
  expect_recovery([](ChainRun& run, size_t place) {
    bool fail = true;
    unsigned hook = run.chain.layer(place).weight().register_hook([&fail](const at::Tensor& g) -> at::Tensor {
      if (fail) throw std::runtime_error("thrown in backward");
      return g;
    });
    EXPECT_THROW(run.step(), std::runtime_error);
    run.chain.layer(place).weight().remove_hook(hook);
    // Without reset() nothing may continue.
    try {
      run.chain.forward(run.input());
      ADD_FAILURE() << "expected the error that asks for reset()";
    } catch (const util::Error& error) {
      EXPECT_NE(std::string(error.what()).find("reset()"), std::string::npos) << error.what();
    }
  });
}

TEST(FailedStep, InRecomputationIsForgottenByReset) {
  for_each_schedule([&](const ShardOptions& options, const testing::Names& recompute) {
    if (recompute.empty()) return;
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ChainRun run(communicator, options, 4, recompute);
      std::vector<at::Tensor> expected = run.gradients_of_a_step();
      for (size_t place : {3u, 1u, 0u}) {
        at::Tensor loss = run.chain.forward(run.input()).sum();
        run.chain.layer(place).throws = true;
        EXPECT_THROW(loss.backward(), std::runtime_error);
        run.chain.layer(place).throws = false;
        run.engine->reset();
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
        EXPECT_TRUE(identical(run.gradients_of_a_step(), expected)) << options.strategy << place;
      }
    });
  });
}

TEST(FailedStep, WithoutSyncLosesWhatWasAccumulated) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix("implicit", "pre"));
    std::vector<at::Tensor> expected = run.gradients_of_a_step();
    {
      NoSync no_sync(*run.engine);
      run.step();
      run.chain.layer(2).throws = true;
      EXPECT_THROW(run.step(), std::runtime_error);
      run.chain.layer(2).throws = false;
    }
    run.engine->reset();
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    EXPECT_TRUE(identical(run.gradients_of_a_step(), expected));
  });
}

TEST(FailedStep, KeepsThePoolAtItsLevel) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& inner) {
    testing::LockstepCommunicator lockstep(inner);
    ChainRun run(lockstep, every_matrix("implicit", "pre"));
    run.step();
    run.step();
    int64_t held = run.engine->buffer_pool().held_bytes();
    for (size_t place : {0u, 3u}) {
      run.chain.layer(place).throws = true;
      EXPECT_THROW(run.step(), std::runtime_error);
      run.chain.layer(place).throws = false;
      run.engine->reset();
      run.step();
      EXPECT_EQ(run.engine->buffer_pool().held_bytes(), held);
    }
  });
}

TEST(Engine, MayGoWhileAGatherIsUnderWay) {
  for (bool late : {false, true}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& inner) {
      auto slow = late ? testing::delayed(inner, true, true) : testing::borrowed(inner);
      for (int round = 0; round < 3; ++round) {
        ShardOptions options = every_matrix("implicit", "pre");
        options.limit_all_gathers = false;
        ChainRun run(*slow, options);
        run.step();
        run.chain.layer(0).throws = true;
        EXPECT_THROW(run.step(), std::runtime_error);  // three gathers have been issued ahead
      }
      at::Tensor one = at::ones({1});
      inner.all_reduce(one, comm::ReduceOp::kSum, {.unit = "afterwards"})->wait();
      EXPECT_EQ(one.item<float>(), 2);
    });
  }
}

// Others may be up to two reductions behind, and go on from what all have.
TEST(FailedStep, KeepsTheSumsBeforeItsLastReductions) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ShardOptions options = every_matrix();
    options.sums_by_sample = true;
    ChainRun run(communicator, options, 3);
    run.engine->zero_gradients();
    begin_sample_sums(*run.engine, {.rounds = 8, .span = {0, 16}, .may_break_off = true});
    for (int round = 0; round < 6; ++round) run.step();
    for (const std::vector<SampleSums>& unit : begun_sample_sums(*run.engine)) {
      std::vector<int64_t> leaves;
      for (const SampleSums& sums : unit) leaves.push_back(sums.leaves);
      EXPECT_EQ(leaves, (std::vector<int64_t>{6, 8, 10, 12}));
    }
  });
}

}  // namespace
}  // namespace fsdp::shard
