// Gathers and reductions that are quantized on their links: which they are, what they change, and what stays
// exact.

#include <gtest/gtest.h>

#include <mutex>

#include "comm/api/trace.h"
#include "shard/engine/engine_sizes.h"
#include "shard/state/full_parameters.h"
#include "shard/units/option_conflicts.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

ShardOptions coded(const char* gather, const char* reduce, ShardOptions options = {}) {
  options.min_num_params = 200;
  options.gather_dtype = gather;
  options.reduce_dtype = reduce;
  return options;
}

ShardOptions hybrid(const char* optimizer, ShardOptions options) {
  options.strategy = "hybrid_shard";
  options.hybrid_optimizer = optimizer;
  return options;
}

testing::RunPlan plan_of(const ShardOptions& options, const comm::MeshOptions& mesh, bool spmd = false) {
  testing::RunPlan plan;
  plan.shard = options;
  plan.mesh = mesh;
  plan.spmd = spmd;
  plan.accumulation = 3;
  return plan;
}

double largest_difference(const testing::RunResult& a, const testing::RunResult& b) {
  double largest = 0;
  for (const auto& [name, weight] : a.weights) {
    largest = std::max(largest, (weight - b.weights.at(name)).abs().max().item<double>());
  }
  return largest;
}

TEST(CodedLinks, InsideAHostChangeNothing) {
  const comm::MeshOptions one_host{.dcn = 2, .data = 2, .ranks_of_host = 4};
  for (const ShardOptions& options : {coded("int8", "int4"), hybrid("global", coded("int8", "int4"))}) {
    ShardOptions exact = options;
    exact.gather_dtype = exact.reduce_dtype = "exact";
    testing::expect_identical_runs(testing::train_sharded(4, plan_of(options, one_host)),
                                   testing::train_sharded(4, plan_of(exact, one_host)), "one host");
  }
}

TEST(CodedLinks, ChangeTheRunALittle) {
  struct Case {
    const char* name;
    ShardOptions options;
    comm::MeshOptions mesh{};
    bool spmd = false;
    /// Of a weight. Blocks of this model's small units have norms of 1 beside weights of 0.2, which codes of
    /// 8 bits change by 2 %, and the learning rate is 0.5.
    double most = 0.2;
  };
  constexpr double kReductions = 0.02;
  const comm::MeshOptions hosts{.dcn = 2, .data = 2, .ranks_of_host = 2};
  ShardOptions bf16 = coded("int8", "int8");
  bf16.mixed_precision.param_dtype = "bfloat16";
  ShardOptions feedback = coded("exact", "int4");
  feedback.error_feedback = true;
  ShardOptions offload = coded("int8", "int8");
  offload.cpu_offload = true;
  ShardOptions own_queue = coded("int8", "int8");
  own_queue.reduce_scatter_group = true;
  ShardOptions everywhere = coded("int8", "int8");
  everywhere.quantize_links = "all";
  ShardOptions whole = coded("exact", "int8");
  whole.strategy = "no_shard";
  ShardOptions parameters = coded("int8", "int8");
  parameters.layout = "per_parameter";
  for (const Case& c :
       {Case{"int8", coded("int8", "int8"), hosts}, Case{"spmd", coded("int8", "int8"), hosts, true},
        Case{"reductions", coded("exact", "int8"), hosts, false, kReductions},
        Case{"replicated", hybrid("replicated", coded("int8", "int8")), hosts, false, kReductions},
        Case{"global", hybrid("global", coded("int8", "int8")), hosts}, Case{"bf16", bf16, hosts},
        Case{"feedback", feedback, hosts, false, kReductions}, Case{"offload", offload, hosts},
        Case{"group", own_queue, hosts}, Case{"all", everywhere},
        Case{"no_shard", whole, hosts, false, kReductions}, Case{"per_parameter", parameters, hosts}}) {
    SCOPED_TRACE(c.name);
    ShardOptions exact = c.options;
    exact.gather_dtype = exact.reduce_dtype = "exact";
    exact.quantize_links = "between_hosts";
    exact.error_feedback = false;
    const testing::RunResult run = testing::train_sharded(4, plan_of(c.options, c.mesh, c.spmd));
    const testing::RunResult without = testing::train_sharded(4, plan_of(exact, c.mesh, c.spmd));
    const double difference = largest_difference(run, without);
    EXPECT_GT(difference, 0);
    EXPECT_LT(difference, c.most);
    EXPECT_NEAR(run.losses.back(), without.losses.back(), 0.01);
    EXPECT_LE(run.peak_bytes, run.bound_bytes);
    const testing::RunResult again = testing::train_sharded(4, plan_of(c.options, c.mesh, c.spmd));
    testing::expect_identical_runs(again, run, "the same run");
  }
}

// Of all traffic the hosts see in a step: formula, counters and trace to the byte.
TEST(CodedLinks, AreTracedAsTheFormulaCounts) {
  for (const char* type : {"int8", "int4"}) {
    for (const ShardOptions& options :
         {coded(type, type), hybrid("replicated", coded(type, type)), hybrid("global", coded(type, type)),
          hybrid("global", coded("exact", type)), coded("exact", "exact")}) {
      testing::on_mesh({.dcn = 2, .data = 2, .ranks_of_host = 2}, [&](const comm::Mesh& given) {
        const auto trace = std::make_shared<comm::Trace>();
        const comm::Mesh mesh({.dcn = 2, .data = 2, .ranks_of_host = 2},
                              comm::make_tracing_communicator(given.world(), trace));
        auto model = testing::make_initialized(testing::tiny_options());
        auto engine = testing::shard_under_test(*model, options, mesh, trace);
        for (int64_t step = 1; step <= 3; ++step) {
          trace->begin_step(step);
          engine->reset_counters();
          engine->zero_gradients();
          testing::loss_of(*model, testing::token_rows(0, 2, 9, 17)).backward();
          const Traffic formula = step_formula(*engine).traffic;
          EXPECT_EQ(engine->traffic(), formula);
          Traffic traced;
          for (const comm::TraceEvent& event : trace->events(step)) {
            for (const TrafficKind& kind : kTrafficKinds) {
              if (event.op != kind.op || event.pass_or_event == "other") continue;
              traced.*kind.number += 1;
              traced.*kind.bytes += event.bytes;
            }
          }
          EXPECT_EQ(traced, formula);
        }
      });
    }
  }
}

TEST(CodedLinks, HaveTheSameSizesWithoutAModel) {
  const comm::MeshOptions hosts{.dcn = 2, .data = 2, .ranks_of_host = 2};
  for (const ShardOptions& options : {coded("int8", "int4"), hybrid("global", coded("int8", "int4"))}) {
    testing::on_mesh(hosts, [&](const comm::Mesh& mesh) {
      auto model = testing::make_initialized(testing::tiny_options());
      const ShardOptions given = testing::on_layout_under_test(options);
      const std::vector<UnitSizes> planned = unit_sizes(*model, given, mesh.shape());
      auto engine = fully_shard(*model, given, mesh);
      const std::vector<UnitSizes> own = unit_sizes(*engine);
      ASSERT_EQ(planned.size(), own.size());
      for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(planned[i].links, own[i].links);
      const bool is_global = options.hybrid_optimizer == "global";
      EXPECT_EQ(own[0].links.gather, is_global ? comm::LinkType::kExact : comm::LinkType::kInt8);
      EXPECT_EQ(own[0].links.gather_across, is_global ? comm::LinkType::kInt8 : comm::LinkType::kExact);
      EXPECT_EQ(own[0].links.reduce_across, is_global ? comm::LinkType::kInt4 : comm::LinkType::kExact);
    });
  }
}

TEST(CodedLinks, LeaveWeightsBetweenStepsExact) {
  testing::on_mesh({.data = 2, .ranks_of_host = 1}, [](const comm::Mesh& mesh) {
    auto model = testing::make_initialized(testing::tiny_options());
    const auto reference = testing::make_initialized(testing::tiny_options());
    auto engine = testing::shard_under_test(*model, coded("int4", "int4"), mesh);
    const auto weights = reference->named_parameters();
    for (const auto& [name, weight] : full_state_dict(*engine, {})) {
      const at::Tensor* expected = weights.find(name);
      if (expected == nullptr) continue;
      EXPECT_TRUE(at::equal(weight, *expected)) << name;
    }
    const FullParameters full(*engine);
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(at::equal(parameter.value(), weights[parameter.key()]));
    }
  });
}

TEST(CodedLinks, GatherTheSameParametersOnAllRanks) {
  std::mutex mutex;
  std::vector<at::Tensor> losses;
  testing::on_mesh({.data = 3, .ranks_of_host = 1}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_initialized(testing::tiny_options());
    auto engine = testing::shard_under_test(*model, coded("int4", "exact"), mesh);
    const at::NoGradGuard no_grad;
    const at::Tensor loss = testing::loss_of(*model, testing::token_rows(0, 2, 9, 17));
    std::lock_guard lock(mutex);
    losses.push_back(loss.clone());
  });
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_TRUE(at::equal(losses[0], losses[1]));
  EXPECT_TRUE(at::equal(losses[0], losses[2]));
}

TEST(CodedLinks, LeaveParametersOfKeepFloat32Exact) {
  testing::on_mesh({.data = 2, .ranks_of_host = 1}, [](const comm::Mesh& mesh) {
    ShardOptions options = coded("int8", "int8");
    options.mixed_precision.keep_float32 = {"*norm*"};
    auto model = testing::make_initialized(testing::tiny_options());
    auto engine = testing::shard_under_test(*model, options, mesh);
    int exact = 0;
    for (const auto& unit : engine->units()) {
      const bool is_coded = unit->groups().coded.gather != nullptr;
      EXPECT_EQ(is_coded, !unit->name().ends_with(".float32")) << unit->name();
      exact += !is_coded;
    }
    EXPECT_GT(exact, 0);
  });
}

TEST(CodedLinks, RefuseWhatTheyCannotBeCombinedWith) {
  const auto message = [](const ShardOptions& options) {
    std::string text;
    for (const OptionConflict& conflict : find_option_conflicts(options)) text += conflict.message + "\n";
    return text;
  };
  EXPECT_EQ(message(coded("int8", "int4")), "");
  ShardOptions by_sample = coded("int8", "int8");
  by_sample.sums_by_sample = true;
  EXPECT_NE(message(by_sample).find("fsdp.gather_dtype must be exact with training.reproducible"),
            std::string::npos);
  EXPECT_NE(message(by_sample).find("fsdp.reduce_dtype must be exact with training.reproducible"),
            std::string::npos);
  ShardOptions lossless = coded("int8", "exact");
  lossless.error_feedback = true;
  EXPECT_NE(message(lossless).find("fsdp.error_feedback must be false"), std::string::npos);
  ShardOptions whole = coded("int8", "exact");
  whole.strategy = "no_shard";
  EXPECT_NE(message(whole).find("fsdp.gather_dtype must be exact"), std::string::npos);
  ShardOptions nowhere = coded("exact", "exact");
  nowhere.quantize_links = "all";
  EXPECT_NE(message(nowhere).find("fsdp.quantize_links must be between_hosts"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::shard
