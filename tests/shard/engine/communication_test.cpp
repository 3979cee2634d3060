// The collectives of a step: their number and their order. N matrices and the root are N + 1 units.

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "support/chain_run.h"
#include "support/layout_under_test.h"
#include "support/nested_models.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using Counts = std::map<std::string, int64_t>;

void on_two_ranks(const std::function<void(comm::Communicator&)>& body) {
  comm::run_ranks_as_threads(2, body);
}

Counts counts_of(testing::CountingCommunicator& calls) {
  return {{"forward gathers", calls.count("all_gather", "forward")},
          {"backward gathers", calls.count("all_gather", "backward")},
          {"reduce-scatters", calls.count("reduce_scatter")},
          {"all-reduces", calls.count("all_reduce")}};
}

/// Of the third step, from which on every prefetch is at work.
Counts counts_of_a_step(const ShardOptions& options, const std::vector<std::string>& recompute = {}) {
  Counts counts;
  on_two_ranks([&](comm::Communicator& communicator) {
    ChainRun run(communicator, options, 4, recompute);
    int forwards = 0;
    run.chain.layer(0).probe = [&](const at::Tensor&) { ++forwards; };
    for (int step = 0; step < 3; ++step) {
      run.calls.clear();
      run.step();
    }
    EXPECT_EQ(forwards, recompute.empty() ? 3 : 6) << "of the first matrix";
    if (communicator.rank() == 0) counts = counts_of(run.calls);
  });
  return counts;
}

Counts counts(int64_t forward, int64_t backward, int64_t scatters, int64_t reduces = 0) {
  return {{"forward gathers", forward},
          {"backward gathers", backward},
          {"reduce-scatters", scatters},
          {"all-reduces", reduces}};
}

TEST(Communication, GathersEveryUnitInForwardAllButLastAndRootInBackward) {
  for (const char* forward : {"none", "implicit", "explicit"}) {
    for (const char* backward : {"none", "pre", "post"}) {
      ShardOptions options = every_matrix(forward, backward);
      EXPECT_EQ(counts_of_a_step(options), counts(5, 3, 5)) << forward << backward;
      options.limit_all_gathers = std::string(forward) == "none";
      EXPECT_EQ(counts_of_a_step(options), counts(5, 3, 5)) << forward << backward;
    }
  }
}

TEST(Communication, GathersTheLastUnitAndTheRootAgainWhenToldSo) {
  ShardOptions options = every_matrix("implicit", "pre");
  options.reshard_last_after_forward = true;
  EXPECT_EQ(counts_of_a_step(options), counts(5, 4, 5));
  options.reshard_root_after_forward = true;
  EXPECT_EQ(counts_of_a_step(options), counts(5, 5, 5));
}

TEST(Communication, GathersOnceWithoutResharding) {
  ShardOptions options = every_matrix("implicit", "pre");
  options.reshard_after_forward = false;
  EXPECT_EQ(counts_of_a_step(options), counts(5, 0, 5));
  options.reshard_after_forward = true;
  options.strategy = "shard_grad_op";
  EXPECT_EQ(counts_of_a_step(options), counts(5, 0, 5));
  options.strategy = "full_shard";
  options.keep_after_forward = {"layers.1"};
  EXPECT_EQ(counts_of_a_step(options), counts(5, 2, 5));
  options.keep_after_forward = {};
  options.strategy = "no_shard";
  EXPECT_EQ(counts_of_a_step(options), counts(0, 0, 0, 5));
}

TEST(Communication, RecomputationAddsNone) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"}) {
    for (const char* backward : {"none", "pre", "post"}) {
      ShardOptions options = every_matrix("implicit", backward);
      options.strategy = strategy;
      EXPECT_EQ(counts_of_a_step(options, {"block"}), counts_of_a_step(options)) << strategy << backward;
    }
  }
}

// Two stages of two matrices each; the matrices and the root's weight are units. A recomputed stage frees its
// inner units after forward as any stage does, though forward records nothing there; backward gathers each
// once at most, for the recomputation, and keeps it until its own backward has ended.
TEST(Communication, RecomputationGathersInnerUnitsOnceInBackward) {
  auto step = [](bool recompute, bool reshard) {
    Counts result;
    on_two_ranks([&](comm::Communicator& inner) {
      testing::CountingCommunicator calls(inner);
      const auto first = std::make_shared<testing::MatrixStage>(4, 4, "linear");
      auto model = testing::group({testing::group({first, testing::matrix(4)}, "pair"),
                                   testing::group({testing::matrix(4), testing::matrix(4)}, "pair")},
                                  "root", 4);
      ShardOptions options = every_matrix("implicit", "pre");
      options.reshard_after_forward = reshard;
      auto engine = testing::shard_under_test(*model, options, testing::borrowed(calls));
      if (recompute) nn::checkpoint_activations(*model, {"pair"});
      int forwards = 0;
      first->probe = [&](const at::Tensor&) { ++forwards; };
      for (int i = 0; i < 2; ++i) {
        calls.clear();
        model->forward(at::ones({2, 4})).sum().backward();
        EXPECT_EQ(engine->live_unsharded_bytes(), 0);
      }
      EXPECT_EQ(forwards, recompute ? 4 : 2);
      if (inner.rank() == 0) result = counts_of(calls);
    });
    return result;
  };
  EXPECT_EQ(step(false, true), counts(5, 3, 5));
  EXPECT_EQ(step(true, true), counts(5, 3, 5));
  EXPECT_EQ(step(false, false), counts(5, 0, 5));
  EXPECT_EQ(step(true, false), counts(5, 0, 5));
}

TEST(Communication, WithoutSyncReducesNothingUntilTheBackwardWithSync) {
  on_two_ranks([](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix("implicit", "pre"));
    {
      NoSync no_sync(*run.engine);
      for (int micro = 0; micro < 2; ++micro) {
        run.calls.clear();
        run.step();
        EXPECT_EQ(counts_of(run.calls), counts(5, 3, 0));
        EXPECT_TRUE(run.engine->has_unreduced_gradients());
        for (const at::Tensor& gradient : run.gradients()) EXPECT_FALSE(gradient.defined());
      }
    }
    EXPECT_TRUE(run.engine->requires_gradient_sync());
    run.calls.clear();
    run.step();
    EXPECT_EQ(counts_of(run.calls), counts(5, 3, 5));
    EXPECT_FALSE(run.engine->has_unreduced_gradients());
  });
}

TEST(Communication, WithoutSyncNoShardReducesNothingUntilTheBackwardWithSync) {
  on_two_ranks([](comm::Communicator& communicator) {
    ShardOptions options = every_matrix();
    options.strategy = "no_shard";
    ChainRun run(communicator, options);
    {
      NoSync no_sync(*run.engine);
      run.step();
      EXPECT_EQ(run.calls.calls().size(), 0u);
    }
    run.step();
    EXPECT_EQ(counts_of(run.calls), counts(0, 0, 0, 5));
  });
}

TEST(Communication, FrozenUnitsAreGatheredButNotReduced) {
  on_two_ranks([](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(4, 4);
    chain.layer(1).weight().requires_grad_(false);
    auto engine = testing::shard_under_test(chain, every_matrix("implicit", "pre"), testing::borrowed(calls));
    for (int step = 0; step < 2; ++step) {
      calls.clear();
      chain.forward(at::ones({2, 4})).sum().backward();
      EXPECT_EQ(counts_of(calls), counts(5, 3, 4));
    }
    EXPECT_FALSE(engine->units()[2]->storage().shard_gradient().defined());
    for (const Segment& segment : engine->segments()) {
      EXPECT_EQ(segment.requires_grad, segment.name != "layers.1.weight");
    }
  });
}

TEST(Communication, FrozenUnitsThatStayGatheredAreGatheredOnceAStep) {
  on_two_ranks([](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(4, 4);
    for (const size_t frozen : {1, 2}) chain.layer(frozen).weight().requires_grad_(false);
    ShardOptions options = every_matrix("implicit", "pre");
    options.keep_after_forward = {"layers.1"};
    options.trained_apart = true;
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(calls));
    const auto micro_batch = [&] { chain.forward(at::ones({2, 4})).sum().backward(); };
    for (int step = 0; step < 2; ++step) {
      engine->zero_gradients();
      calls.clear();
      micro_batch();
      EXPECT_EQ(counts_of(calls), counts(3, 0, 1)) << "what is trained, layers.1 and layers.2";
      calls.clear();
      micro_batch();
      EXPECT_EQ(counts_of(calls), counts(2, 0, 1)) << "layers.1 is there";
      EXPECT_GT(engine->live_unsharded_bytes(), 0);
    }
    engine->zero_gradients();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
    micro_batch();
    engine->note_changed_weights();
    calls.clear();
    micro_batch();
    EXPECT_EQ(counts_of(calls), counts(3, 0, 1)) << "weights may have changed";
    engine->require_rest("a test");
    EXPECT_GT(engine->live_unsharded_bytes(), 0) << "a query frees nothing";
    engine->reshard_frozen();
    EXPECT_EQ(engine->live_unsharded_bytes(), 0);
  });
}

TEST(Communication, BackwardDoesNotGatherWhatIsFrozenInFrontOfEverythingTrained) {
  on_two_ranks([](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(4, 4);
    chain.named_parameters()["bias"].requires_grad_(false);
    for (const size_t frozen : {0, 1}) chain.layer(frozen).weight().requires_grad_(false);
    auto engine = testing::shard_under_test(chain, every_matrix("implicit", "pre"), testing::borrowed(calls));
    for (int step = 0; step < 3; ++step) {
      calls.clear();
      engine->zero_gradients();
      chain.forward(at::ones({2, 4})).sum().backward();
      EXPECT_EQ(counts_of(calls), counts(5, 1, 2)) << "layers.2 alone";
    }
  });
}

TEST(Communication, TrainedParametersApartAreReducedAsOneUnit) {
  on_two_ranks([](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(4, 4);
    for (const size_t frozen : {0, 2, 3}) chain.layer(frozen).weight().requires_grad_(false);
    ShardOptions options = every_matrix("implicit", "pre");
    options.trained_apart = true;
    options.param_storage = "bfloat16";
    options.mixed_precision.param_dtype = "bfloat16";
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(calls));
    calls.clear();
    chain.forward(at::ones({2, 4})).sum().backward();
    EXPECT_EQ(calls.count("reduce_scatter"), 1);
    for (const auto& unit : engine->units()) {
      const bool trained = unit->name() == "root.trained";
      EXPECT_EQ(unit->storage().has_trainable_parameters(), trained) << unit->name();
      EXPECT_EQ(unit->storage().shard().scalar_type(), trained ? at::kFloat : at::kBFloat16) << unit->name();
      EXPECT_EQ(unit->storage().shard_gradient().defined(), trained) << unit->name();
    }
  });
}

TEST(Communication, ReplicatedParametersAreAllReducedAndNeverGathered) {
  on_two_ranks([](comm::Communicator& inner) {
    testing::CountingCommunicator calls(inner);
    testing::ChainStage chain(4, 4);
    ShardOptions options = every_matrix("implicit", "pre");
    options.replicated_parameters = {"bias"};
    auto engine = testing::shard_under_test(chain, options, testing::borrowed(calls));
    chain.forward(at::ones({2, 4})).sum().backward();
    EXPECT_EQ(counts_of(calls), counts(4, 3, 4, 1));
  });
}

}  // namespace
}  // namespace fsdp::shard
