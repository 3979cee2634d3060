// Sharded training equals training of the whole model for every strategy, number of ranks and combination of
// options. Every run also checks that no memory is live after each backward pass.

#include <gtest/gtest.h>

#include "base/util/error.h"
#include "shard/engine/wrap_policy.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::RunPlan;
using testing::RunResult;

constexpr const char* kStrategies[] = {"full_shard", "shard_grad_op", "no_shard"};

RunPlan training_plan(const std::string& architecture = "llama") {
  RunPlan plan;
  plan.model = testing::tiny_options(architecture);
  plan.global_rows = 24;  // over up to 8 ranks, or in 2 micro-batches over up to 4
  plan.shard.min_num_params = 400;
  plan.max_norm = 0.5;
  return plan;
}

void expect_trains_as_the_whole_model(RunPlan plan, const std::vector<int>& worlds, const std::string& what) {
  RunResult expected = train_unsharded(plan);
  EXPECT_LT(expected.losses.back(), expected.losses.front()) << what;
  for (const char* strategy : kStrategies) {
    plan.shard.strategy = strategy;
    for (int world : worlds) {
      expect_close_runs(train_sharded(world, plan), expected,
                        concat(what, ", ", strategy, ", ", world, " ranks"));
    }
  }
}

TEST(ShardedTraining, IsThatOfTheWholeModel) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      RunPlan plan = training_plan(architecture);
      plan.model.tie_word_embeddings = tied;
      expect_trains_as_the_whole_model(plan, {1, 2, 3, 4}, concat(architecture, tied ? " tied" : ""));
    }
  }
  RunPlan plan = training_plan();
  plan.steps = 2;
  expect_trains_as_the_whole_model(plan, {8}, "llama");
}

TEST(ShardedTraining, DoesNotDependOnWhatBecomesAUnit) {
  RunPlan plan = training_plan();
  RunResult expected = train_unsharded(plan);
  std::vector<size_t> units;
  for (int64_t threshold : {1, 200, 450, 1176, 1'000'000}) {
    plan.shard.min_num_params = threshold;
    units.push_back(plan_units(*testing::make_model(plan), plan.shard).size());
    expect_close_runs(train_sharded(3, plan), expected, concat("threshold ", threshold));
  }
  EXPECT_GT(units.front(), units[2]) << "the threshold decides what is a unit";
  EXPECT_GT(units[2], units.back());
  plan.shard.min_num_params = 1;
  plan.shard.exclude_stages = {};
  expect_close_runs(train_sharded(3, plan), expected, "attention apart");
}

TEST(ShardedTraining, MayRecomputeActivations) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (const char* type : {"block", "feed_forward"}) {
      RunPlan plan = training_plan(architecture);
      plan.recompute = {type};
      plan.steps = 2;
      expect_trains_as_the_whole_model(plan, {1, 2, 3}, concat(architecture, " recomputing ", type));
      plan.shard.min_num_params = 1;  // units inside of what is recomputed
      expect_trains_as_the_whole_model(plan, {2}, concat(architecture, " recomputing units in ", type));
    }
  }
}

TEST(ShardedTraining, MayAccumulateMicroBatchesOnShardsOrBeforeTheReduction) {
  for (bool no_sync : {false, true}) {
    for (bool recompute : {false, true}) {
      RunPlan plan = training_plan();
      plan.accumulation = 2;
      plan.no_sync = no_sync;
      if (recompute) plan.recompute = {"block"};
      plan.steps = 2;
      expect_trains_as_the_whole_model(plan, {1, 2, 4}, concat(no_sync ? "no_sync" : "on shards", recompute));
    }
  }
}

TEST(ShardedTraining, MayKeepShardsInHostMemory) {
  for (bool move_grads : {false, true}) {
    for (bool no_sync : {false, true}) {
      RunPlan plan = training_plan();
      plan.shard.cpu_offload = true;
      plan.shard.move_grads_to_cpu = move_grads;
      plan.accumulation = 2;
      plan.no_sync = no_sync;
      plan.steps = 2;
      expect_trains_as_the_whole_model(plan, {1, 2, 3}, concat("offload ", move_grads, no_sync));
    }
  }
}

TEST(ShardedTraining, MayReplicateSomeParameters) {
  for (const char* pattern : {"*norm*", "model.embed_tokens*", "model.layers.1.*"}) {
    for (bool recompute : {false, true}) {
      RunPlan plan = training_plan();
      plan.shard.replicated_parameters = {pattern};
      if (recompute) plan.recompute = {"block"};
      RunResult expected = train_unsharded(plan);
      for (int world : {1, 2, 3}) {
        expect_close_runs(train_sharded(world, plan), expected, concat(pattern, ", ", world, " ranks"));
      }
      plan.shard.strategy = "shard_grad_op";
      expect_close_runs(train_sharded(2, plan), expected, concat(pattern, ", shard_grad_op"));
    }
  }
}

TEST(ShardedTraining, LeavesFrozenParametersAlone) {
  for (const char* pattern : {"model.embed_tokens*", "model.layers.0.*", "model.layers.2.*", "*norm*"}) {
    for (bool recompute : {false, true}) {
      RunPlan plan = training_plan();
      plan.frozen = {pattern};
      plan.steps = 2;
      if (recompute) plan.recompute = {"block"};
      expect_trains_as_the_whole_model(plan, {1, 3}, concat(pattern, recompute));
      std::map<std::string, at::Tensor> trained = train_sharded(2, plan).weights;
      plan.steps = 0;
      int64_t frozen = 0;
      for (const auto& [name, weight] : train_sharded(2, plan).weights) {
        bool same = at::equal(trained.at(name), weight);
        EXPECT_EQ(same, util::matches_any(name, plan.frozen)) << pattern << ", " << name;
        frozen += same;
      }
      EXPECT_GT(frozen, 0) << pattern;
    }
  }
}

TEST(ShardedTraining, StartsBehindEverythingFrozen) {
  // Nothing before the last block needs a gradient: its backward ends the pass.
  RunPlan plan = training_plan();
  plan.frozen = {"model.embed_tokens*", "model.layers.0.*", "model.layers.1.*"};
  for (const char* prefetch : {"none", "pre", "post"}) {
    plan.shard.backward_prefetch = prefetch;
    expect_trains_as_the_whole_model(plan, {2, 3}, prefetch);
  }
}

TEST(ShardedTraining, WithAdamWAndParametersThatDoNotDecay) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (bool tied : {false, true}) {
      RunPlan plan = training_plan(architecture);
      plan.model.tie_word_embeddings = tied;
      plan.steps = 4;
      plan.learning_rate = 0.01;
      plan.optimizer = optim::OptimizerOptions{};
      plan.optimizer->weight_decay = 0.3;
      plan.optimizer->no_decay = {"*norm*", "*bias", "*embed*"};
      plan.optimizer->eps = 1e-3;  // rounding in gradients near zero must not become a whole step
      expect_trains_as_the_whole_model(plan, {1, 2, 3}, concat(architecture, tied ? " tied" : ""));
      plan.frozen = {"*layers.0.*", "*h.0.*"};
      plan.accumulation = 2;
      plan.no_sync = true;
      expect_trains_as_the_whole_model(plan, {2}, concat(architecture, ", first block frozen"));
    }
  }
}

TEST(ShardedTraining, WeightDecayReachesOnlyWhatShallDecay) {
  RunPlan plan = training_plan();
  plan.learning_rate = 0.1;
  plan.optimizer = optim::OptimizerOptions{};
  plan.optimizer->eps = 1e30;  // no step but the decay
  plan.optimizer->weight_decay = 1;
  plan.optimizer->no_decay = {"*norm*"};
  plan.steps = 0;
  RunResult before = train_sharded(3, plan);
  plan.steps = 1;
  for (const auto& [name, weight] : train_sharded(3, plan).weights) {
    double factor = util::matches_any(name, {"*norm*"}) ? 1.0 : 0.9;
    EXPECT_TRUE(at::allclose(weight, before.weights.at(name) * factor, 1e-6)) << name;
  }
}

}  // namespace
}  // namespace fsdp::shard
