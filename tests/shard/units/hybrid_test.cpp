// Hybrid sharding: units cut over the data axis of a mesh, replicated over its dcn axis.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/util/error.h"
#include "shard/hybrid_fixtures.h"
#include "shard/units/option_conflicts.h"
#include "support/chain_run.h"
#include "support/connected_ranks.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using ::testing::HasSubstr;
using testing::identical;
using testing::RunPlan;
using testing::RunResult;

/// Meshes of dcn x data.
const std::vector<comm::MeshOptions> kMeshes = {
    {.dcn = 2, .data = 2}, {.dcn = 2, .data = 1}, {.dcn = 1, .data = 4}, {.dcn = 4, .data = 1}};

int world_of(const comm::MeshOptions& mesh) { return static_cast<int>(mesh.dcn * mesh.data); }

std::string name_of(const comm::MeshOptions& mesh) { return concat(mesh.dcn, "x", mesh.data); }

RunPlan hybrid_plan() {
  RunPlan plan;
  plan.global_rows = 24;
  plan.shard.min_num_params = 400;
  plan.max_norm = 0.5;
  return plan;
}

/// On each of the meshes and with both strategies.
void expect_hybrid_trains_as_the_whole_model(RunPlan plan, const std::vector<comm::MeshOptions>& meshes,
                                             const std::string& what) {
  RunResult expected = train_unsharded(plan);
  for (const comm::MeshOptions& mesh : meshes) {
    plan.mesh = mesh;
    for (const char* strategy : kHybrids) {
      plan.shard.strategy = strategy;
      expect_close_runs(train_sharded(world_of(mesh), plan), expected,
                        concat(what, ", ", strategy, ", ", name_of(mesh)));
    }
  }
}

// ---- groups

TEST(HybridGroups, FollowTheTableOfStrategies) {
  comm::run_ranks_as_threads(6, [](comm::Communicator& communicator) {
    comm::Mesh mesh({.dcn = 2, .data = 3}, testing::borrowed(communicator));
    auto sizes = [&](const char* strategy) {
      ProcessGroups groups = process_groups(mesh, strategy);
      EXPECT_EQ(group_sizes(mesh.shape(), strategy), groups.sizes()) << strategy;
      return std::pair(groups.shard->world_size(), groups.replicas());
    };
    EXPECT_EQ(sizes("full_shard"), std::pair(6, 1));
    EXPECT_EQ(sizes("shard_grad_op"), std::pair(6, 1));
    EXPECT_EQ(sizes("hybrid_shard"), std::pair(3, 2));
    EXPECT_EQ(sizes("hybrid_shard_zero2"), std::pair(3, 2));
    EXPECT_EQ(sizes("no_shard"), std::pair(1, 6));
    ProcessGroups hybrid = process_groups(mesh, "hybrid_shard");
    EXPECT_EQ(hybrid.shard->rank(), mesh.coordinate().data);
    EXPECT_EQ(hybrid.replica_rank(), mesh.coordinate().dcn);
    EXPECT_EQ(process_groups(mesh, "no_shard").replica_rank(), communicator.rank());
    ProcessGroups global = process_groups(mesh, "hybrid_shard", "global");
    EXPECT_EQ(global.sizes(), (GroupSizes{.shards = 3, .replicas = 1, .slices = 2}));
    EXPECT_EQ(global.sizes(), group_sizes(mesh.shape(), "hybrid_shard", "global"));
    EXPECT_EQ(global.place().rank, 2 * mesh.coordinate().data + mesh.coordinate().dcn);
    EXPECT_EQ(global.place().world_size, 6);
    EXPECT_EQ(process_groups(mesh, "full_shard", "global").sizes().slices, 1);
  });
}

TEST(HybridGroups, AreDescribedByTheAxesThatHaveRanks) {
  EXPECT_EQ(describe_groups({2, 4, 1}, "hybrid_shard"),
            "units sharded over data (4), replicated over dcn (2)");
  EXPECT_EQ(describe_groups({2, 4, 1}, "full_shard"), "units sharded over dcn x data (8)");
  EXPECT_EQ(describe_groups({2, 4, 1}, "no_shard"), "units replicated over dcn x data (8)");
  EXPECT_EQ(describe_groups({1, 4, 1}, "hybrid_shard"), "units sharded over data (4)");
  EXPECT_EQ(describe_groups({4, 1, 1}, "hybrid_shard"), "units replicated over dcn (4)");
  EXPECT_EQ(describe_groups({1, 1, 1}, "full_shard"), "units whole on the only rank");
  EXPECT_EQ(
      describe_groups({2, 4, 1}, "hybrid_shard", "global"),
      "units sharded over data (4), gradients, master weights and optimizer state sharded over dcn x data "
      "(8)");
  EXPECT_EQ(describe_groups({4, 1, 1}, "hybrid_shard", "global"),
            "units whole on every rank, gradients, master weights and optimizer state sharded over dcn (4)");
  EXPECT_EQ(describe_groups({1, 4, 1}, "hybrid_shard", "global"), "units sharded over data (4)");
}

// ---- training

TEST(HybridShard, TrainsAsTheWholeModelOnEveryMesh) {
  for (bool tied : {false, true}) {
    RunPlan plan = hybrid_plan();
    plan.model.tie_word_embeddings = tied;
    expect_hybrid_trains_as_the_whole_model(plan, kMeshes, tied ? "tied" : "untied");
  }
  RunPlan plan = hybrid_plan();
  plan.steps = 2;
  plan.shard.min_num_params = 1;
  plan.recompute = {"block"};
  expect_hybrid_trains_as_the_whole_model(plan, {{.dcn = 2, .data = 3}, {.dcn = 3, .data = 2}},
                                          "recomputing");
}

TEST(HybridShard, AccumulatesMicroBatchesOnShardsOrBeforeTheReduction) {
  for (bool no_sync : {false, true}) {
    for (bool offload : {false, true}) {
      RunPlan plan = hybrid_plan();
      plan.accumulation = 2;
      plan.no_sync = no_sync;
      plan.steps = 2;
      plan.shard.cpu_offload = offload;
      plan.shard.move_grads_to_cpu = offload;
      expect_hybrid_trains_as_the_whole_model(plan, kMeshes, concat("accumulating ", no_sync, offload));
    }
  }
}

TEST(HybridShard, ReplicatesSomeParametersOverTheWholeWorldAndLeavesFrozenOnesAlone) {
  RunPlan plan = hybrid_plan();
  plan.shard.replicated_parameters = {"*norm*", "model.layers.1.*"};
  plan.frozen = {"model.layers.0.*"};
  expect_hybrid_trains_as_the_whole_model(plan, kMeshes, "replicated and frozen");
}

TEST(HybridShard, TrainsWithAdamW) {
  RunPlan plan = hybrid_plan();
  plan.learning_rate = 0.01;
  plan.optimizer = optim::OptimizerOptions{};
  plan.optimizer->no_decay = {"*norm*"};
  plan.optimizer->eps = 1e-3;  // rounding in gradients near zero must not become a whole step
  expect_hybrid_trains_as_the_whole_model(plan, kMeshes, "adamw");
}

TEST(HybridShard, ClipsByTheNormOfTheWholeGradientWhereReplicasCountOnce) {
  for (double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    RunPlan plan = hybrid_plan();
    plan.steps = 2;
    plan.norm_type = norm_type;
    plan.max_norm = norm_type == 1.0 ? 5.0 : norm_type == 2.0 ? 0.3 : 0.05;
    plan.shard.replicated_parameters = {"*norm*"};
    for (double norm : train_unsharded(plan).norms) EXPECT_GT(norm, plan.max_norm) << "nothing is clipped";
    expect_hybrid_trains_as_the_whole_model(plan, kMeshes, concat("norm ", norm_type));
  }
}

TEST(HybridShard, InLowPrecisionIsCloseToFullShard) {
  for (const char* reduce : {"float32", "bfloat16", "float16"}) {
    RunPlan plan = hybrid_plan();
    plan.steps = 2;
    plan.learning_rate = 0.1;
    auto& precision = plan.shard.mixed_precision;
    precision.param_dtype = std::string(reduce) == "float16" ? "float16" : "bfloat16";
    precision.reduce_dtype = reduce;
    RunResult full = train_sharded(4, plan);
    plan.mesh = {.dcn = 2, .data = 2};
    for (const char* strategy : kHybrids) {
      plan.shard.strategy = strategy;
      RunResult hybrid = train_sharded(4, plan);
      // Sums are rounded once within the slice and once between slices.
      for (size_t i = 0; i < full.losses.size(); ++i) {
        EXPECT_NEAR(hybrid.losses[i], full.losses[i], 1e-3 * full.losses[i]) << reduce;
        EXPECT_NEAR(hybrid.norms[i], full.norms[i], 2e-2 * full.norms[i]) << reduce;
      }
      for (const auto& [name, weight] : hybrid.weights) {
        EXPECT_TRUE(at::allclose(weight, full.weights.at(name), 1e-2, 1e-3)) << reduce << ", " << name;
      }
    }
  }
}

TEST(HybridShard, WithOneSliceIsFullShardAndWithSlicesOfOneNoShard) {
  RunPlan plan = hybrid_plan();
  RunResult full = train_sharded(4, plan);
  plan.shard.strategy = "no_shard";
  RunResult none = train_sharded(4, plan);
  plan.shard.strategy = "hybrid_shard";
  plan.mesh = {.dcn = 1, .data = 4};
  expect_identical_runs(train_sharded(4, plan), full, "one slice");
  plan.mesh = {.dcn = 4, .data = 1};
  expect_identical_runs(train_sharded(4, plan), none, "slices of one");
}

TEST(FullShard, GoesOverAllSlicesOfAMesh) {
  RunPlan plan = hybrid_plan();
  RunResult expected = train_sharded(4, plan);
  plan.mesh = {.dcn = 2, .data = 2};
  expect_identical_runs(train_sharded(4, plan), expected, "2 slices");
}

TEST(HybridShard, GetsTheSameGradientsOverSockets) {
  const comm::MeshOptions mesh{.dcn = 2, .data = 2};
  std::vector<at::Tensor> expected;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    std::vector<at::Tensor> gradients =
        ChainRun(communicator, hybrid_matrices(), 4, {}, mesh).gradients_of_a_step();
    if (communicator.rank() == 0) expected = gradients;
  });
  testing::run_ranks_over_gloo({.world_size = 4}, [&](std::shared_ptr<comm::Communicator>& communicator) {
    ChainRun run(*communicator, hybrid_matrices(), 4, {}, mesh);
    for (int step = 0; step < 3; ++step) {
      std::vector<at::Tensor> gradients = run.gradients_of_a_step();
      // Two replicas: their sum does not depend on the order.
      EXPECT_TRUE(communicator->rank() != 0 || identical(gradients, expected));
    }
    communicator->barrier({.unit = "end"});
  });
}

TEST(HybridShard, KeepsReplicasEqualBitForBit) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    auto model_options = testing::tiny_options();
    auto model = testing::make_initialized(model_options);
    ShardOptions options;
    options.strategy = "hybrid_shard";
    options.min_num_params = 400;
    comm::Mesh mesh({.dcn = 2, .data = 2}, testing::delayed(communicator, true, true));
    auto engine = testing::shard_under_test(*model, options, mesh);
    for (int64_t step = 0; step < 3; ++step) {
      engine->zero_gradients();
      testing::loss_of(*model,
                       testing::token_rows(4 * step + communicator.rank(), 1, 9, model_options.vocab_size))
          .backward();
      testing::sgd_on_shards(*engine, 0.5);
      for (const auto& unit : engine->units()) {
        at::Tensor shard = unit->storage().shard();
        at::Tensor first = shard.clone();
        unit->groups().replicate->broadcast(first, 0, {.unit = "test"})->wait();
        EXPECT_TRUE(at::equal(first, shard)) << unit->name();
      }
    }
  });
}

// ---- failures

TEST(HybridFailure, AStepThatThrowsIsForgottenByReset) {
  for (const char* strategy : kHybrids) {
    comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
      const comm::MeshOptions mesh{.dcn = 2, .data = 2};
      ChainRun good(communicator, hybrid_matrices(strategy), 4, {}, mesh);
      std::vector<at::Tensor> expected = good.gradients_of_a_step();
      ChainRun run(communicator, hybrid_matrices(strategy), 4, {}, mesh);
      for (size_t place : {0u, 2u, 3u, 1u}) {
        run.chain.layer(place).throws = true;
        EXPECT_THROW(run.chain.forward(run.input()), std::runtime_error);
        run.chain.layer(place).throws = false;
        run.engine->reset();

        bool fail = true;
        unsigned hook =
            run.chain.layer(place).weight().register_hook([&fail](const at::Tensor& g) -> at::Tensor {
              if (fail) throw std::runtime_error("thrown in backward");
              return g;
            });
        EXPECT_THROW(run.step(), std::runtime_error);
        run.chain.layer(place).weight().remove_hook(hook);
        run.engine->reset();
        EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
        EXPECT_TRUE(identical(run.gradients_of_a_step(), expected)) << strategy << place;
      }
    });
  }
}

/// On every rank the collective of that kind of unit layers.2 fails; returns what rank 0's step throws.
std::string failure_of(const std::string& failing_op) {
  std::string message;
  std::atomic<int> failed = 0;
  comm::run_ranks_as_threads(4, [&](comm::Communicator& inner) {
    testing::InterposedCommunicator interposed(
        inner, [&](const std::string& op, const std::string& unit, const std::string&) {
          if (op == failing_op && unit == "layers.2") fail(ErrorKind::kPeerLost, "no ", op);
        });
    ChainRun run(interposed, hybrid_matrices(), 4, {}, {.dcn = 2, .data = 2});
    try {
      run.step();
    } catch (const util::Error& error) {
      ++failed;
      if (inner.rank() == 0) message = error.what();
    }
    run.engine->reset();
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
    EXPECT_FALSE(run.engine->has_unreduced_gradients());
    inner.barrier({.unit = "the world's own queue goes on"});
  });
  EXPECT_EQ(failed, 4);
  return message;
}

// The queue of the replicas waits for a result that will never come: its tasks are dropped with the error of
// the queue that should have brought it.
TEST(HybridFailure, OfAReduceScatterEndsTheAllReducesToo) {
  EXPECT_EQ(failure_of("reduce_scatter"), "no reduce_scatter");
}

TEST(HybridFailure, OfAnAllReduceIsThrownByBackward) { EXPECT_EQ(failure_of("all_reduce"), "no all_reduce"); }

TEST(HybridFailure, OfARankEndsTheOthers) {
  for (int thrower = 0; thrower < 4; ++thrower) {
    EXPECT_THROW(comm::run_ranks_as_threads(4,
                                            [&](comm::Communicator& communicator) {
                                              ChainRun run(communicator, hybrid_matrices(), 4, {},
                                                           {.dcn = 2, .data = 2});
                                              run.step();
                                              if (communicator.rank() == thrower) {
                                                throw std::logic_error("gave up");
                                              }
                                              run.step();
                                              run.step();
                                            }),
                 std::logic_error);
  }
}

TEST(HybridFailure, AMeshThatDoesNotFitIsAUsageErrorWithTheArithmetic) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    try {
      ChainRun run(communicator, hybrid_matrices(), 4, {}, {.dcn = 2, .data = 3});
      ADD_FAILURE() << "expected an error";
    } catch (const util::Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(
          error.what(),
          HasSubstr(
              "mesh.dcn 2 x mesh.data 3 x mesh.context 1 x mesh.model 1 = 6, but the run has 4 processes"));
    }
  });
}

}  // namespace
}  // namespace fsdp::shard
