// hybrid_optimizer = "global": units gathered within a slice, updated in parts of all ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "shard/state/full_parameters.h"
#include "support/chain_run.h"
#include "support/layout_under_test.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using testing::every_matrix;
using testing::RunPlan;
using testing::RunResult;

int ranks_of(const comm::MeshOptions& mesh) { return static_cast<int>(mesh.dcn * mesh.data); }

/// dcn x data.
const std::vector<comm::MeshOptions> kSlicedMeshes = {
    {.dcn = 2, .data = 2}, {.dcn = 2, .data = 1}, {.dcn = 4, .data = 1}, {.dcn = 3, .data = 2}};

ShardOptions global_matrices(const char* strategy = "hybrid_shard") {
  ShardOptions options = every_matrix("implicit", "pre");
  options.strategy = strategy;
  options.hybrid_optimizer = "global";
  return options;
}

struct Variant {
  std::string name;
  std::function<void(RunPlan&)> change;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) { return out << variant.name; }

class GlobalOptimizer : public ::testing::TestWithParam<Variant> {};

// Each sum adds the same numbers in the same order: those of a slice, then those of the slices, then those of
// the micro-batches.
TEST_P(GlobalOptimizer, TrainsBitForBitAsReplicatedOnesDo) {
  for (const comm::MeshOptions& mesh : kSlicedMeshes) {
    RunPlan plan;
    plan.global_rows = 24;
    plan.shard.min_num_params = 400;
    plan.shard.strategy = "hybrid_shard";
    plan.mesh = mesh;
    GetParam().change(plan);
    // Where one rank holds whole parameters, that layout lets kernels add gradients up without rounding them
    // first.
    const bool is_flat = plan.shard.layout == "flat" && testing::flat_is_under_test();
    const bool in_parts = mesh.data > 1 || is_flat;
    RunPlan reference = plan;
    reference.always_all_reduces = true;
    if (!in_parts) reference.shard.strategy = "full_shard";
    const RunResult expected = train_sharded(ranks_of(mesh), reference);
    plan.shard.hybrid_optimizer = "global";
    const RunResult found = train_sharded(ranks_of(mesh), plan);
    SCOPED_TRACE(concat(mesh.dcn, "x", mesh.data));
    EXPECT_EQ(found.losses, expected.losses);
    for (size_t i = 0; i < expected.norms.size(); ++i) {
      EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-6 * expected.norms[i]);  // of other parts
    }
    for (const auto& [name, weight] : found.weights) {
      EXPECT_TRUE(at::equal(weight, expected.weights.at(name))) << name;
    }
    EXPECT_LE(found.peak_bytes, found.bound_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GlobalOptimizer,
    ::testing::Values(
        Variant{"TenSteps", [](RunPlan& plan) { plan.steps = 10; }},
        Variant{"Zero2", [](RunPlan& plan) { plan.shard.strategy = "hybrid_shard_zero2"; }},
        Variant{"ReshardsEverything",
                [](RunPlan& plan) {
                  plan.shard.reshard_root_after_forward = plan.shard.reshard_last_after_forward = true;
                }},
        Variant{"WithoutPrefetch",
                [](RunPlan& plan) {
                  plan.shard.forward_prefetch = "none";
                  plan.shard.backward_prefetch = "none";
                }},
        Variant{"ReduceScatterGroup", [](RunPlan& plan) { plan.shard.reduce_scatter_group = true; }},
        Variant{"Recomputing", [](RunPlan& plan) { plan.recompute = {"block"}; }},
        Variant{"Accumulation", [](RunPlan& plan) { plan.accumulation = 2; }},
        Variant{"AccumulationWithoutSync",
                [](RunPlan& plan) {
                  plan.accumulation = 2;
                  plan.no_sync = true;
                }},
        Variant{"Bf16",
                [](RunPlan& plan) {
                  plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype =
                      "bfloat16";
                }},
        Variant{"StoredInBf16ComputedInFp32", [](RunPlan& plan) { plan.shard.param_storage = "bfloat16"; }},
        Variant{"Float16",
                [](RunPlan& plan) {
                  plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype =
                      "float16";
                  plan.shard.mixed_precision.keep_low_precision_grads = true;
                }},
        Variant{"PerParameter", [](RunPlan& plan) { plan.shard.layout = "per_parameter"; }},
        Variant{"PerParameterBf16",
                [](RunPlan& plan) {
                  plan.shard.layout = "per_parameter";
                  plan.shard.shard_1d_parameters = true;
                  plan.shard.mixed_precision.param_dtype = "bfloat16";
                }},
        Variant{"Offloaded",
                [](RunPlan& plan) {
                  plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
                  plan.accumulation = 2;
                }},
        Variant{"FrozenAndReplicated",
                [](RunPlan& plan) {
                  plan.shard.replicated_parameters = {"*norm*", "model.layers.1.*"};
                  plan.frozen = {"model.layers.0.*"};
                }},
        Variant{"WrappedUnits",
                [](RunPlan& plan) {
                  plan.wrapped = {{"model.layers.0", {.strategy = "full_shard"}},
                                  {"model.layers.1", {.strategy = "no_shard"}},
                                  {"model.layers.2", {.param_dtype = "bfloat16", .cpu_offload = true}}};
                }},
        Variant{"AdamW",
                [](RunPlan& plan) {
                  plan.optimizer.emplace();
                  plan.optimizer->name = "adamw";
                  plan.learning_rate = 0.01;
                }},
        Variant{"Spmd", [](RunPlan& plan) { plan.spmd = true; }}),
    [](const auto& info) { return info.param.name; });

TEST(GlobalOptimizerOfSlices, ClipsByANormThatCountsEachElementOnce) {
  for (double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    RunPlan plan;
    plan.global_rows = 24;
    plan.max_norm = 0.5;
    plan.norm_type = norm_type;
    plan.shard.min_num_params = 400;
    plan.shard.replicated_parameters = {"*norm*"};
    const RunResult expected = train_unsharded(plan);
    plan.shard.strategy = "hybrid_shard";
    plan.shard.hybrid_optimizer = "global";
    for (const comm::MeshOptions& mesh : kSlicedMeshes) {
      plan.mesh = mesh;
      expect_close_runs(train_sharded(ranks_of(mesh), plan), expected, concat("norm ", norm_type));
    }
  }
}

TEST(GlobalOptimizerOfSlices, DividesWeightsGradientsAndStateByTheSlices) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& communicator) {
    const auto bytes = [&](const char* optimizer, const char* param_dtype) {
      ShardOptions options = global_matrices();
      options.hybrid_optimizer = optimizer;
      options.mixed_precision.param_dtype = param_dtype;
      ChainRun run(communicator, options, 4, {}, {.dcn = 2, .data = 2});
      run.step();
      int64_t gradients = 0;
      for (const at::Tensor& gradient : run.gradients()) gradients += static_cast<int64_t>(gradient.nbytes());
      return std::array{run.engine->shard_bytes(), gradients, run.engine->source_bytes()};
    };
    // Four matrices of 16 and a bias of 4 over two or four ranks.
    const int64_t all = 4 * (4 * 16 + 4);
    EXPECT_EQ(bytes("replicated", "float32"), (std::array<int64_t, 3>{all / 2, all / 2, 0}));
    EXPECT_EQ(bytes("global", "float32"), (std::array<int64_t, 3>{all / 4, all / 4, all / 2}));
    EXPECT_EQ(bytes("global", "bfloat16"), (std::array<int64_t, 3>{all / 4, all / 4, all / 4}));
  });
}

TEST(GlobalOptimizerOfSlices, CommunicatesToTheByteAsTheFormulaSays) {
  for (const char* layout : {"flat", "per_parameter"}) {
    for (const char* dtype : {"float32", "bfloat16"}) {
      for (const comm::MeshOptions& mesh : kSlicedMeshes) {
        for (const StepFormulaOptions& step :
             {StepFormulaOptions{}, {.micro_batches = 3}, {.micro_batches = 3, .no_sync = true}}) {
          SCOPED_TRACE(concat(layout, " ", dtype, " ", mesh.dcn, "x", mesh.data, " ", step.micro_batches,
                              step.no_sync ? " without sync" : ""));
          comm::run_ranks_as_threads(ranks_of(mesh), [&](comm::Communicator& communicator) {
            ShardOptions options = global_matrices();
            options.layout = layout;
            options.shard_1d_parameters = std::string(layout) == "per_parameter";
            options.mixed_precision.param_dtype = dtype;
            ChainRun run(communicator, options, 4, {}, mesh);
            const auto predicted = step_formula(*run.engine, step);
            for (int i = 0; i < 3; ++i) {
              run.calls.clear();
              run.engine->reset_counters();
              run.engine->zero_gradients();
              for (int64_t micro = 0; micro < step.micro_batches; ++micro) {
                run.engine->set_requires_gradient_sync(!step.no_sync || micro + 1 == step.micro_batches);
                run.step();
              }
              const StepFormula formula = step_formula(*run.engine, step);
              EXPECT_EQ(run.engine->traffic(), formula.traffic);
              EXPECT_EQ(formula.between_slices, predicted.between_slices);
              EXPECT_LE(run.engine->unsharded_memory().peak, formula.unsharded_bytes);
              EXPECT_EQ(run.engine->shard_bytes(), formula.shard_bytes);
              EXPECT_EQ(run.engine->source_bytes(), formula.source_bytes);
              Traffic between;
              for (const auto& call : run.calls.calls()) {
                if (call.pass != kBetweenSlices) continue;
                if (call.op == "all_gather") between.all_gathers += 1;
                if (call.op == "reduce_scatter") between.reduce_scatters += 1;
              }
              EXPECT_EQ(between.all_gathers, formula.between_slices.all_gathers);
              EXPECT_EQ(between.reduce_scatters, formula.between_slices.reduce_scatters);
              EXPECT_EQ(between.all_gathers, 5) << "each unit once a step";
            }
          });
        }
      }
    }
  }
}

// Payloads of a rank over 2 x 2: between slices, half as much of the weights in bf16, and half as much of the
// gradients as an all-reduce.
TEST(GlobalOptimizerOfSlices, SendsTheLowerOfTheTwoTypesBetweenSlices) {
  const auto bytes = [](const char* storage, const char* param_dtype) {
    int64_t bytes = 0;
    comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
      ShardOptions options = global_matrices();
      options.param_storage = storage;
      options.mixed_precision.param_dtype = param_dtype;
      ChainRun run(communicator, options, 4, {}, {.dcn = 2, .data = 2});
      if (communicator.rank() == 0) bytes = step_formula(*run.engine).between_slices.all_gather_bytes;
    });
    return bytes;
  };
  const int64_t elements = (4 * 16 + 4) / 4;
  EXPECT_EQ(bytes("float32", "float32"), 4 * elements);
  EXPECT_EQ(bytes("float32", "bfloat16"), 2 * elements);
  EXPECT_EQ(bytes("bfloat16", "float32"), 2 * elements);
}

/// The loss of a forward without autograd, on every rank alike.
double evaluated(ChainRun& run) {
  at::NoGradGuard no_grad;
  return run.chain.forward(at::ones({2, 4})).sum().item<double>();
}

/// What each of these calls sees of the weights, with and without slices.
TEST(GlobalOptimizerOfSlices, EveryForwardSeesTheWeightsAsTheyAre) {
  for (const comm::MeshOptions& mesh : kSlicedMeshes) {
    std::map<std::string, std::vector<double>> seen;
    std::map<std::string, int64_t> gathers;
    for (const char* optimizer : {"replicated", "global"}) {
      comm::run_ranks_as_threads(ranks_of(mesh), [&](comm::Communicator& communicator) {
        ShardOptions options = global_matrices();
        options.hybrid_optimizer = optimizer;
        ChainRun run(communicator, options, 4, {}, mesh);
        std::vector<double> values = {evaluated(run)};
        const auto step = [&] {
          run.engine->zero_gradients();
          run.step();
          testing::sgd_on_shards(*run.engine, 0.1);
        };
        step();
        values.push_back(evaluated(run));  // before the next zero_gradients()
        const FullStateDict before = full_state_dict(*run.engine);
        run.calls.clear();
        values.push_back(evaluated(run));
        int64_t between = 0;
        for (const auto& call : run.calls.calls()) between += call.pass == kBetweenSlices;
        EXPECT_EQ(between, 0) << "nothing has changed";
        step();
        values.push_back(evaluated(run));
        load_full_state_dict(*run.engine, before);
        values.push_back(evaluated(run));
        EXPECT_EQ(values.back(), values[2]);
        {
          FullParameters full(*run.engine, {.writeback = true});
          at::NoGradGuard no_grad;
          for (const auto& parameter : run.chain.parameters()) parameter.mul_(0.5);
        }
        values.push_back(evaluated(run));
        const LocalStateDict local = local_state_dict(*run.engine);
        load_local_state_dict(*run.engine, local);
        values.push_back(evaluated(run));
        EXPECT_EQ(values[5], values[6]);
        EXPECT_NE(values[4], values[5]);
        if (communicator.rank() == 0) seen[optimizer] = values;
      });
    }
    EXPECT_EQ(seen["global"], seen["replicated"]);
  }
}

// The gather between slices of the last unit ends only when the first has been reached: if anything but the
// last unit waited for it, this would hang.
TEST(GlobalOptimizerOfSlices, GathersBetweenSlicesBesideTheForward) {
  comm::run_ranks_as_threads(4, [](comm::Communicator& inner) {
    auto first_is_used = std::make_shared<std::promise<void>>();
    std::shared_future<void> when = first_is_used->get_future().share();
    testing::InterposedCommunicator interposed(
        inner,
        [when](const std::string& op, const std::string& unit, const std::string& pass) {
          if (op == "all_gather" && unit == "layers.3" && pass == kBetweenSlices) when.wait();
        },
        [first_is_used, done = false](const std::string& op, const std::string& unit,
                                      const std::string& pass) mutable {
          if (op == "all_gather" && unit == "layers.1" && pass == "forward" && !std::exchange(done, true)) {
            first_is_used->set_value();
          }
        });
    ChainRun run(interposed, global_matrices(), 4, {}, {.dcn = 2, .data = 2});
    run.step();
    inner.barrier({.unit = "end"});
  });
}

TEST(GlobalOptimizerOfSlices, AStepThatThrowsIsForgottenByReset) {
  const comm::MeshOptions mesh{.dcn = 2, .data = 2};
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    ChainRun good(communicator, global_matrices(), 4, {}, mesh);
    const std::vector<at::Tensor> expected = good.gradients_of_a_step();
    ChainRun run(communicator, global_matrices(), 4, {}, mesh);
    at::Tensor loss = run.chain.forward(run.input()).sum();
    run.engine->reset();
    EXPECT_TRUE(testing::identical(run.gradients_of_a_step(), expected));
    EXPECT_EQ(run.engine->live_unsharded_bytes(), 0);
  });
}

}  // namespace
}  // namespace fsdp::shard
