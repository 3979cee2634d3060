// Units with options of their own: wrap() in a scope of EnableWrap.

#include "shard/wrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "shard/engine_sizes.h"
#include "shard/option_conflicts.h"
#include "shard/rank_checks.h"
#include "support/chain_run.h"
#include "support/fake_collectives.h"
#include "support/log_lines.h"
#include "support/nested_models.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"
#include "support/told_step.h"
#include "util/error.h"

namespace fsdp::shard {
namespace {

using testing::ChainRun;
using ::testing::ElementsAre;
using testing::every_matrix;
using testing::group;
using ::testing::HasSubstr;
using testing::matrix;
using testing::Names;
using testing::names_of;
using testing::OptionsByPath;
using testing::refusal_of;
using testing::RunPlan;
using testing::RunResult;
using testing::wrap_paths;

/// Nothing but the root would be a unit.
ShardOptions one_unit() {
  ShardOptions options;
  options.min_num_params = 1'000'000;
  return options;
}

/// The units of a chain in whose scope these are wrapped.
std::vector<UnitPlan> plans_of(testing::ChainStage& chain, ShardOptions options, const OptionsByPath& wrapped,
                               const UnitOverrides& defaults = {}) {
  const EnableWrap scope(defaults);
  wrap_paths(chain, wrapped);
  options = WrappedModules::added_to(options);
  WrappedModules::clear();
  return plan_units(chain, options);
}

const UnitOptions& options_of(const std::vector<UnitPlan>& plans, const std::string& name) {
  for (const UnitPlan& plan : plans) {
    if (plan.name == name) return plan.options;
  }
  ADD_FAILURE() << "no unit " << name;
  return plans.front().options;
}

// ---- which modules are units

TEST(Wrap, OutsideOfAScopeIsTheModule) {
  auto stage = std::make_shared<testing::MatrixStage>(4, 4);
  EXPECT_EQ(wrap(stage, {.cpu_offload = true}), stage);
  torch::nn::Linear plain(2, 2);
  EXPECT_EQ(wrap(plain).ptr(), plain.ptr()) << "of any kind";
  EXPECT_TRUE(WrappedModules::added_to({}).wrapped.empty());
}

TEST(Wrap, MakesUnitsOfHoldersAndPointersAlike) {
  const EnableWrap scope;
  nn::Hooked<torch::nn::LinearImpl> holder(2, 2);
  auto stage = std::make_shared<testing::MatrixStage>(4, 4);
  EXPECT_EQ(wrap(holder, {.strategy = "no_shard"}).ptr(), holder.ptr());
  EXPECT_EQ(wrap(stage), stage);
  const std::vector<WrappedModule> wrapped = WrappedModules::added_to({}).wrapped;
  ASSERT_EQ(wrapped.size(), 2);
  EXPECT_EQ(wrapped[0].module, &*holder);
  EXPECT_EQ(wrapped[0].options.strategy, util::Named<Strategy>("no_shard"));
  EXPECT_EQ(wrapped[1].module, stage.get());
  WrappedModules::clear();
}

TEST(Wrap, AWrappedModuleIsAUnitWhateverThePolicySays) {
  testing::ChainStage chain(3, 4);
  for (auto change : std::vector<std::function<void(ShardOptions&)>>{
           [](ShardOptions&) {}, [](ShardOptions& o) { o.exclude_stages = {"block"}; },
           [](ShardOptions& o) { o.leaf_stages = {"chain"}; },
           [](ShardOptions& o) { o.wrap_policy = [](const StageInfo&) { return false; }; }}) {
    ShardOptions options = one_unit();
    change(options);
    EXPECT_EQ(names_of(plans_of(chain, options, {{"layers.1", {}}})), (Names{"root", "layers.1"}));
  }
  ShardOptions by_hand;
  by_hand.units = {&chain.layer(2)};
  EXPECT_EQ(names_of(plans_of(chain, by_hand, {{"layers.0", {}}})), (Names{"root", "layers.0", "layers.2"}));
}

TEST(Wrap, TheNextFullyShardOfTheScopeTakesTheModules) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    const EnableWrap scope;
    for (int model = 0; model < 2; ++model) {
      testing::ChainStage chain(3, 4);
      wrap_paths(chain, {{"layers.1", {.strategy = "no_shard"}}});
      const auto planned = unit_sizes(chain, one_unit(), {.data = 2});
      const auto engine = fully_shard(chain, one_unit(), testing::borrowed(communicator));
      ASSERT_EQ(engine->units().size(), 2);
      EXPECT_FALSE(engine->units()[1]->is_cut());
      EXPECT_EQ(planned, unit_sizes(*engine));
      chain.forward(at::ones({2, 4})).sum().backward();
    }
  });
}

TEST(Wrap, ForEachOptionTheCallDecidesThenTheScopesThenTheModel) {
  testing::ChainStage chain(3, 4);
  ShardOptions model = one_unit();
  model.mixed_precision.param_dtype = model.mixed_precision.reduce_dtype = "bfloat16";
  model.cpu_offload = model.move_grads_to_cpu = true;
  const EnableWrap outer({.strategy = "hybrid_shard", .cpu_offload = true});
  const auto plans = plans_of(chain, model,
                              {{"layers.0", {.param_dtype = "float16", .cpu_offload = false}},
                               {"layers.1", {.strategy = "no_shard"}},
                               {"layers.2", {}}},
                              {.strategy = "shard_grad_op", .reduce_dtype = "float32"});
  EXPECT_EQ(options_of(plans, "root").strategy, util::Named<Strategy>("full_shard"));
  EXPECT_EQ(options_of(plans, "root").storage.param_dtype, at::kBFloat16);
  const UnitOptions &first = options_of(plans, "layers.0"), &second = options_of(plans, "layers.1");
  EXPECT_EQ(first.strategy, util::Named<Strategy>("shard_grad_op"));
  EXPECT_EQ(first.storage.param_dtype, at::kHalf);
  EXPECT_EQ(first.storage.reduce_dtype, at::kFloat);
  EXPECT_FALSE(first.storage.cpu_offload);
  EXPECT_FALSE(first.storage.move_grads_to_cpu) << "belongs to cpu_offload";
  EXPECT_EQ(second.strategy, util::Named<Strategy>("no_shard"));
}

TEST(Wrap, UnitsInsideAWrappedModuleHaveTheirOwnOptions) {
  auto model = testing::make_initialized(testing::tiny_options());
  const EnableWrap scope;
  wrap_paths(*model,
             {{"model.layers.0", {.cpu_offload = true}}, {"model.layers.1.mlp", {.cpu_offload = true}}});
  ShardOptions options;
  options.min_num_params = 400;
  const auto plans = plan_units(*model, WrappedModules::added_to(options));
  WrappedModules::clear();
  EXPECT_TRUE(options_of(plans, "model.layers.0").storage.cpu_offload);
  EXPECT_FALSE(options_of(plans, "model.layers.0.mlp").storage.cpu_offload);
  EXPECT_FALSE(options_of(plans, "model.layers.1").storage.cpu_offload);
  EXPECT_TRUE(options_of(plans, "model.layers.1.mlp").storage.cpu_offload);
}

TEST(Wrap, ParametersTakenOutOfAUnitKeepItsOptions) {
  testing::ChainStage chain(4, 4);
  ShardOptions options = one_unit();
  options.mixed_precision.param_dtype = "bfloat16";
  options.mixed_precision.keep_float32 = {"layers.0.*", "layers.3.*"};
  options.replicated_parameters = {"layers.1.*", "layers.2.*"};
  const auto plans = plans_of(
      chain, options,
      {{"layers.0", {.cpu_offload = true}}, {"layers.1", {.reduce_dtype = "bfloat16"}}, {"layers.2", {}}});
  EXPECT_EQ(names_of(plans),
            (Names{"root", "root.replicated", "root.float32", "layers.0.float32", "layers.1.replicated"}));
  EXPECT_TRUE(options_of(plans, "layers.0.float32").storage.cpu_offload);
  EXPECT_EQ(options_of(plans, "layers.0.float32").storage.param_dtype, at::kFloat);
  EXPECT_EQ(options_of(plans, "layers.1.replicated").storage.reduce_dtype, at::kBFloat16);
  EXPECT_TRUE(shards_nothing(options_of(plans, "layers.1.replicated").strategy));
  for (const UnitPlan& plan : plans) EXPECT_EQ(plan.module, &chain) << plan.name;
}

// ---- each option

TEST(Wrap, EachUnitIsReshardedAsItSays) {
  for (bool model_reshards : {true, false}) {
    comm::run_ranks_as_threads(2, [&](comm::Communicator& communicator) {
      ShardOptions options = every_matrix("implicit", "pre");
      options.reshard_after_forward = model_reshards;
      ChainRun run(
          communicator, options, 4, {}, {},
          {{"layers.0", {.reshard_after_forward = true}}, {"layers.1", {.reshard_after_forward = false}}});
      for (int step = 0; step < 3; ++step) {
        run.engine->reset_counters();
        run.step();
        std::map<std::string, int64_t> gathers;
        for (const auto& unit : run.engine->units()) gathers[unit->name()] = unit->traffic().all_gathers;
        EXPECT_EQ(gathers.at("layers.0"), 2);
        EXPECT_EQ(gathers.at("layers.1"), 1);
        EXPECT_EQ(gathers.at("layers.2"), model_reshards ? 2 : 1);
        EXPECT_EQ(gathers.at("root"), 1);
      }
    });
  }
}

TEST(Wrap, TheRootMayBeReshardedByItsOwnOption) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    auto chain = std::make_shared<testing::ChainStage>(2, 4);
    const EnableWrap scope;
    wrap(chain, {.reshard_after_forward = true});
    const auto engine = testing::shard_under_test(*chain, every_matrix(), testing::borrowed(communicator));
    chain->forward(at::ones({2, 4})).sum().backward();
    EXPECT_EQ(engine->units()[0]->traffic().all_gathers, 2);
  });
}

TEST(Wrap, EachUnitHasItsTypes) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    ShardOptions options = every_matrix("implicit", "pre");
    options.mixed_precision.param_dtype = "bfloat16";
    ChainRun run(communicator, options, 4, {}, {},
                 {{"layers.0", {.param_storage = "bfloat16"}},
                  {"layers.1", {.param_dtype = "float32"}},
                  {"layers.2", {.param_dtype = "float16", .reduce_dtype = "float16"}},
                  {"layers.3", {.reduce_dtype = "bfloat16", .keep_low_precision_grads = true}}});
    std::vector<at::ScalarType> inputs(4), weights(4);
    for (size_t i = 0; i < 4; ++i) {
      run.chain.layer(i).probe = [&, i](const at::Tensor& x) {
        inputs[i] = x.scalar_type();
        weights[i] = run.chain.layer(i).weight().scalar_type();
      };
    }
    run.step();
    const auto types = ElementsAre(at::kBFloat16, at::kFloat, at::kHalf, at::kBFloat16);
    EXPECT_THAT(inputs, types);
    EXPECT_THAT(weights, types);
    std::map<std::string, at::ScalarType> gathered, reduced;
    for (const auto& call : run.calls.calls()) {
      (call.op == "all_gather" ? gathered : reduced)[call.unit] = call.dtype;
    }
    EXPECT_EQ(gathered.at("layers.1"), at::kFloat);
    EXPECT_EQ(gathered.at("layers.2"), at::kHalf);
    EXPECT_EQ(reduced.at("layers.0"), at::kFloat);
    EXPECT_EQ(reduced.at("layers.2"), at::kHalf);
    EXPECT_EQ(reduced.at("layers.3"), at::kBFloat16);
    for (const auto& unit : run.engine->units()) {
      EXPECT_EQ(unit->storage().shard().scalar_type(),
                unit->name() == "layers.0" ? at::kBFloat16 : at::kFloat);
    }
    const auto gradients = run.gradients();
    EXPECT_EQ(gradients[3].scalar_type(), at::kFloat);
    EXPECT_EQ(gradients[4].scalar_type(), at::kBFloat16) << "kept";
  });
}

TEST(Wrap, InputsAreCastForTheUnitsThatSaySo) {
  for (bool cast : {true, false}) {
    comm::run_ranks_as_threads(2, [cast](comm::Communicator& communicator) {
      ShardOptions options = every_matrix();
      options.mixed_precision.param_dtype = "bfloat16";
      ChainRun run(communicator, options, 2, {}, {},
                   {{"layers.0", {.param_dtype = "float32"}}, {"layers.1", {.cast_forward_inputs = cast}}});
      at::ScalarType seen{};
      run.chain.layer(1).probe = [&](const at::Tensor& x) { seen = x.scalar_type(); };
      run.chain.layer(1).throws = true;  // before it multiplies tensors of two types
      EXPECT_ANY_THROW(run.chain.forward(run.input()));
      run.engine->reset();
      EXPECT_EQ(seen, cast ? at::kBFloat16 : at::kFloat);
    });
  }
}

TEST(Wrap, ShardsAndGradientsLieWhereTheUnitSays) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& rank) {
    for (bool model_offloads : {false, true}) {
      const auto communicator = testing::on_fake_device(rank);
      testing::ChainStage chain(4, 4);
      testing::move_parameters(chain, communicator->device());
      ShardOptions options = every_matrix();
      options.cpu_offload = options.move_grads_to_cpu = model_offloads;
      const EnableWrap scope;
      wrap_paths(chain, {{"layers.0", {.cpu_offload = true, .move_grads_to_cpu = true}},
                         {"layers.1", {.cpu_offload = true, .move_grads_to_cpu = false}},
                         {"layers.2", {.cpu_offload = false}}});
      auto engine = fully_shard(chain, options, comm::Mesh({}, communicator));
      const auto is_on_host = [&](size_t unit) {
        const UnitStorage& storage = engine->units()[unit]->storage();
        return std::pair(storage.shard().is_cpu(), storage.shard_gradient().is_cpu());
      };
      for (int step = 0; step < 2; ++step) {
        engine->zero_gradients();
        chain.forward(at::ones({2, 4}).to(communicator->device())).sum().backward();
        EXPECT_EQ(is_on_host(1), std::pair(true, true));
        EXPECT_EQ(is_on_host(2), std::pair(true, false));
        EXPECT_EQ(is_on_host(3), std::pair(false, false));
        EXPECT_EQ(is_on_host(4), std::pair(model_offloads, model_offloads));
        EXPECT_GT(grad_norm(*engine), 0) << "of gradients in both places";
      }
    }
  });
}

TEST(Wrap, EachUnitHasItsGroup) {
  const comm::MeshOptions mesh{.dcn = 2, .data = 2};
  comm::run_ranks_as_threads(4, [&](comm::Communicator& communicator) {
    ChainRun run(communicator, every_matrix("implicit", "pre"), 4, {}, mesh,
                 {{"layers.0", {.strategy = "no_shard"}},
                  {"layers.1", {.strategy = "hybrid_shard"}},
                  {"layers.2", {.strategy = "shard_grad_op"}}});
    run.step();
    std::vector<std::string> calls;
    for (const auto& call : run.calls.calls()) {
      if (call.unit.starts_with("layers"))
        calls.push_back(util::concat(call.op, " ", call.unit, " ", call.numel));
    }
    // Matrices of 16 elements: cut over four ranks, or over the two of a slice, or over none.
    EXPECT_THAT(calls,
                ElementsAre("all_gather layers.1 8", "all_gather layers.2 4", "all_gather layers.3 4",
                            "reduce_scatter layers.3 4", "all_gather layers.1 8", "reduce_scatter layers.2 4",
                            "reduce_scatter layers.1 8", "all_reduce layers.1 8", "all_reduce layers.0 16"));
    EXPECT_NO_THROW(require_equal_replicas(*run.engine, "test"));
  });
}

// ---- results, sizes, formula

struct Wrapping {
  std::string name;
  OptionsByPath wrapped;
  std::function<void(ShardOptions&)> change = [](ShardOptions&) {};
};

void PrintTo(const Wrapping& wrapping, std::ostream* out) { *out << wrapping.name; }

/// In fp32, with blocks of a tiny llama.
std::vector<Wrapping> wrappings() {
  const auto nothing = [](ShardOptions&) {};
  return {
      {"resharding", {{"model.layers.0", {.reshard_after_forward = false}}}, nothing},
      {"resharding_one",
       {{"model.layers.1", {.reshard_after_forward = true}}},
       [](ShardOptions& o) { o.reshard_after_forward = false; }},
      {"offload",
       {{"model.layers.0", {.cpu_offload = true}},
        {"model.layers.1", {.cpu_offload = true, .move_grads_to_cpu = true}}},
       nothing},
      {"one_on_the_device",
       {{"model.layers.2", {.cpu_offload = false}}},
       [](ShardOptions& o) { o.cpu_offload = o.move_grads_to_cpu = true; }},
      {"groups",
       {{"model.layers.0", {.strategy = "no_shard"}},
        {"model.layers.1", {.strategy = "hybrid_shard"}},
        {"model.layers.2.mlp", {.strategy = "hybrid_shard_zero2"}}},
       nothing},
      {"one_that_is_cut",
       {{"model.layers.1", {.strategy = "full_shard"}}},
       [](ShardOptions& o) { o.strategy = "no_shard"; }},
      {"groups_in_hybrid",
       {{"model.layers.0", {.strategy = "full_shard"}}, {"model.embed_tokens", {.strategy = "no_shard"}}},
       [](ShardOptions& o) {
         o.strategy = "hybrid_shard";
         o.replicated_parameters = {"*norm*"};
       }},
      {"everything",
       {{"model.layers.0", {.strategy = "no_shard", .cpu_offload = true}},
        {"model.layers.1", {.strategy = "hybrid_shard", .reshard_after_forward = false}},
        {"model.layers.2", {.strategy = "shard_grad_op", .cpu_offload = true, .move_grads_to_cpu = true}}},
       [](ShardOptions& o) { o.reduce_scatter_group = true; }},
      {"everything_per_parameter",
       {{"model.layers.0", {.strategy = "no_shard", .cpu_offload = true}},
        {"model.layers.1", {.strategy = "hybrid_shard", .reshard_after_forward = false}},
        {"model.layers.2", {.cpu_offload = true, .move_grads_to_cpu = true}}},
       [](ShardOptions& o) { o.layout = "per_parameter"; }},
  };
}

class WrapOf : public ::testing::TestWithParam<Wrapping> {
 protected:
  static RunPlan plan() {
    RunPlan plan;
    plan.global_rows = 24;
    plan.shard.min_num_params = 400;
    plan.max_norm = 0.5;
    GetParam().change(plan.shard);
    plan.wrapped = GetParam().wrapped;
    return plan;
  }
};

TEST_P(WrapOf, SomeUnitsTrainsAsOneProcessDoes) {
  for (bool no_sync : {false, true}) {
    RunPlan plan = this->plan();
    plan.accumulation = no_sync ? 2 : 1;
    plan.no_sync = no_sync;
    const RunResult expected = train_unsharded(plan);
    for (const comm::MeshOptions& mesh : std::vector<comm::MeshOptions>{{}, {.dcn = 2, .data = 2}}) {
      plan.mesh = mesh;
      for (int world : {1, 2, 4}) {
        if (world < mesh.dcn * 2 && mesh.dcn > 1) continue;
        expect_close_runs(train_sharded(world, plan), expected,
                          util::concat(GetParam().name, ", ", world, " ranks, dcn ", mesh.dcn));
      }
    }
  }
}

TEST_P(WrapOf, SomeUnitsTrainsWithAdamWAndRecomputationAsOneProcessDoes) {
  RunPlan plan = this->plan();
  plan.learning_rate = 0.01;
  plan.optimizer = optim::OptimizerOptions{};
  plan.optimizer->eps = 1e-3;  // rounding in gradients near zero must not become a whole step
  plan.recompute = {"block"};
  const RunResult expected = train_unsharded(plan);
  plan.mesh = {.dcn = 2, .data = 2};
  expect_close_runs(train_sharded(4, plan), expected, GetParam().name);
}

TEST_P(WrapOf, SomeUnitsHasTheSizesTheTrafficAndTheMemoryThatTheFormulaGives) {
  const RunPlan plan = this->plan();
  testing::on_mesh({.dcn = 2, .data = 2}, [&](const comm::Mesh& mesh) {
    auto model = testing::make_initialized(plan.model);
    const EnableWrap scope;
    wrap_paths(*model, plan.wrapped);
    const ShardOptions options = testing::on_layout_under_test(plan.shard);
    std::vector<UnitSizes> planned = unit_sizes(*model, options, mesh.shape());
    const auto engine = fully_shard(*model, options, mesh);
    EXPECT_EQ(planned, unit_sizes(*engine));
    int64_t largest = 0;
    for (const auto& unit : engine->units()) {
      const UnitStorage& storage = unit->storage();
      largest =
          std::max({largest, storage.unsharded_bytes(), storage.gathered_bytes(), storage.gradient_bytes()});
    }
    for (int step = 0; step < 3; ++step) {
      engine->reset_counters();
      engine->zero_gradients();
      testing::loss_of(*model, testing::token_rows(mesh.world()->rank(), 2, 9, plan.model.vocab_size))
          .backward();
      const StepFormula formula = step_formula(*engine);
      EXPECT_EQ(engine->traffic(), formula.traffic) << step;
      EXPECT_EQ(engine->shard_bytes(), formula.shard_bytes);
      EXPECT_LE(engine->unsharded_memory().peak, formula.unsharded_bytes) << step;
      // Which of several queues is ahead is a matter of timing, and a unit may be in gathering.
      EXPECT_GE(engine->unsharded_memory().peak, formula.unsharded_bytes - 4 * largest) << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Options, WrapOf, ::testing::ValuesIn(wrappings()),
                         [](const auto& info) { return info.param.name; });

TEST(Wrap, UnitsOfTwoTypesTrainCloseToThoseOfOne) {
  RunPlan plan;
  plan.global_rows = 24;
  plan.shard.min_num_params = 1000;  // whole blocks: their inputs are cast
  plan.learning_rate = 0.1;
  const RunResult expected = train_unsharded(plan);
  plan.shard.mixed_precision.param_dtype = "bfloat16";
  plan.wrapped = {{"model.layers.0", {.param_dtype = "float16", .reduce_dtype = "float16"}},
                  {"model.layers.1", {.param_dtype = "float32"}}};
  for (const char* layout : {"flat", "per_parameter"}) {
    plan.shard.layout = layout;
    const RunResult run = train_sharded(4, plan);
    for (size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], expected.losses[i], 0.01 * expected.losses[i]) << layout;
    }
  }
}

TEST(Wrap, StateDictsMoveBetweenWrappings) {
  const auto wrapped_model = [](comm::Communicator& rank, const OptionsByPath& wrapped, uint64_t seed) {
    auto model = testing::make_initialized(testing::tiny_options(), seed);
    const EnableWrap scope;
    wrap_paths(*model, wrapped);
    ShardOptions options;
    options.min_num_params = 400;
    auto engine = testing::shard_under_test(*model, options, comm::Mesh({.dcn = 2}, testing::borrowed(rank)));
    return std::pair(model, engine);
  };
  comm::run_ranks_as_threads(4, [&](comm::Communicator& rank) {
    const auto [from_model, from] = wrapped_model(
        rank,
        {{"model.layers.0", {.strategy = "no_shard"}}, {"model.layers.1", {.strategy = "hybrid_shard"}}}, 1);
    const auto [to_model, to] = wrapped_model(rank, {{"model.layers.2", {.strategy = "hybrid_shard"}}}, 2);
    const FullStateDict expected = full_state_dict(*from);
    load_full_state_dict(*to, expected);
    const FullStateDict found = full_state_dict(*to);
    ASSERT_EQ(found.size(), expected.size());
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : found) by_name[name] = tensor;
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(by_name.at(name), tensor)) << name;
  });
}

// ---- errors

testing::Refusal refusal_of_wrapping(const OptionsByPath& wrapped, const ShardOptions& options = one_unit()) {
  testing::ChainStage chain(3, 4);
  return refusal_of([&] { plans_of(chain, options, wrapped); });
}

TEST(WrapErrors, NameTheModuleThatIsNotInTheModel) {
  testing::ChainStage chain(2, 4);
  const auto refused = refusal_of([&] {
    const EnableWrap scope;
    wrap(std::make_shared<testing::MatrixStage>(4, 4, "stranger"));
    plan_units(chain, WrappedModules::added_to(one_unit()));
  });
  EXPECT_EQ(refused.kind, util::ErrorKind::kUsage);
  EXPECT_EQ(
      refused.text.substr(0, refused.text.find('\n')),
      "wrap(): expected stages inside the root; found a module of type stranger, which is not; register it as "
      "a module of the root or take it out");
}

TEST(WrapErrors, NameTheModuleThatIsWrappedTwice) {
  testing::ChainStage chain(2, 4);
  const auto refused = refusal_of([&] {
    const EnableWrap scope;
    for (int i = 0; i < 2; ++i) wrap_paths(chain, {{"layers.1", {}}});
    plan_units(chain, WrappedModules::added_to(one_unit()));
  });
  EXPECT_THAT(refused.text,
              HasSubstr("wrap(): expected each module once; found \"layers.1\" again; leave one of the "
                        "calls out"));
}

TEST(WrapErrors, OfAFailedCallLeaveTheModulesToTheNext) {
  comm::run_ranks_as_threads(2, [](comm::Communicator& communicator) {
    testing::ChainStage chain(2, 4);
    const EnableWrap scope;
    wrap_paths(chain, {{"layers.1", {}}});
    ShardOptions options = one_unit();
    options.wrap_stages = {"unknown"};
    EXPECT_THROW(fully_shard(chain, options, testing::borrowed(communicator)), util::Error);
    EXPECT_EQ(fully_shard(chain, one_unit(), testing::borrowed(communicator))->units().size(), 2);
  });
}

TEST(WrapErrors, NameTheOptionsThatExcludeEachOther) {
  const auto text = [](const UnitOverrides& own, const ShardOptions& options = one_unit()) {
    return refusal_of_wrapping({{"layers.2", own}}, options).text;
  };
  EXPECT_THAT(text({.move_grads_to_cpu = true}),
              HasSubstr("wrap() of \"layers.2\": fsdp.move_grads_to_cpu must be false, because with "
                        "fsdp.cpu_offload = false"));
  EXPECT_THAT(
      text({.strategy = "no_shard", .reshard_after_forward = true}),
      HasSubstr("wrap() of \"layers.2\": fsdp.reshard_after_forward must be false, but is true, and with "
                "fsdp.strategy = no_shard the unit stays gathered from forward to backward; leave it out or "
                "set the unit's strategy to full_shard or hybrid_shard"));
  EXPECT_THAT(text({.keep_low_precision_grads = true}),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.keep_low_precision_grads must be false"));
  EXPECT_THAT(text({.param_dtype = "bfloat16", .reduce_dtype = "float16"}),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.reduce_dtype must be float32 or"));
  ShardOptions buffers = one_unit();
  buffers.mixed_precision.buffer_dtype = "float16";
  EXPECT_THAT(text({.param_dtype = "bfloat16"}, buffers),
              HasSubstr("wrap() of \"layers.2\": mixed_precision.buffer_dtype must be float32 or"));
}

TEST(WrapErrors, NameTheModuleWithoutParameters) {
  auto hollow = group({matrix(2)}, "hollow");
  auto root = group({hollow}, "root");
  const EnableWrap scope;
  wrap(hollow);
  ShardOptions options;
  options.min_num_params = 1;
  const auto refused = refusal_of([&] { plan_units(*root, WrappedModules::added_to(options)); });
  WrappedModules::clear();
  EXPECT_THAT(refused.text,
              HasSubstr("wrap(): expected stages with parameters that no unit inside them holds; found "
                        "\"0\" of type hollow, which has none; leave the call out"));
}

TEST(Wrap, AUnitMayHoldNothingButATiedParameter) {
  const at::Tensor tied = at::ones({6});
  const auto sharing = [&] { return std::make_shared<testing::SharingStage>(tied); };
  auto first = group({sharing()}, "group", 2), second = group({sharing()}, "group", 3);
  auto around = group({first, second}, "around");
  auto root = group({around, matrix(2)}, "root");
  const EnableWrap scope;
  for (const auto& stage : {first, second, around}) wrap(stage);
  const std::vector<UnitPlan> plans = plan_units(*root, WrappedModules::added_to(one_unit()));
  WrappedModules::clear();
  EXPECT_THAT(names_of(plans), ElementsAre("root", "0", "0.0", "0.1"));
  EXPECT_THAT(testing::parameters_of(plans[1]), ElementsAre("0.0.0.weight"));
}

TEST(WrapErrors, AModuleMustHaveHooks) {
  const EnableWrap scope;
  const auto refused = refusal_of([] { wrap(torch::nn::Linear(2, 2)); });
  EXPECT_EQ(refused.kind, util::ErrorKind::kUsage);
  EXPECT_THAT(refused.text, HasSubstr("wrap(): expected a module whose calls can be hooked; found a plain "));
  EXPECT_THAT(refused.text, HasSubstr("LinearImpl; declare the module as fsdp::nn::Hooked"));
}

TEST(WrapErrors, AScopeWithoutFullyShardIsWarnedOf) {
  const auto lines = testing::log_lines([] {
    const EnableWrap scope;
    const EnableWrap inner;
    wrap(std::make_shared<testing::MatrixStage>(4, 4));
  });
  EXPECT_THAT(
      lines,
      HasSubstr("EnableWrap: expected fully_shard() before the scope ends; found none after 1 calls of "
                "wrap(), which have no effect; call it in the scope"));
}

TEST(WrapErrors, TheUseOfArrivingGradientsNeedsThoseOfAllUnits) {
  comm::run_ranks_as_threads(1, [](comm::Communicator& communicator) {
    ShardOptions options = every_matrix();
    options.cpu_offload = options.move_grads_to_cpu = true;
    ChainRun run(communicator, options, 3, {}, {}, {{"layers.1", {.cpu_offload = false}}});
    const auto refused = refusal_of([&] { const GradientUse use(*run.engine, [](size_t) {}); });
    EXPECT_THAT(refused.text, HasSubstr("fsdp.move_grads_to_cpu = false in unit layers.1"));
  });
}

// ---- what the options of the model allow beside wrapped modules

TEST(WrapConflicts, OptionsOfTheModelMayServeWrappedUnitsAlone) {
  testing::MatrixStage stage(2, 2);
  const auto conflicts = [&](const ShardOptions& options) { return find_option_conflicts(options).size(); };
  ShardOptions options;
  options.strategy = "no_shard";
  options.forward_prefetch = "explicit";
  options.reshard_last_after_forward = true;
  options.reduce_scatter_group = true;
  EXPECT_EQ(conflicts(options), 3);
  options.wrapped = {{&stage, {.strategy = "full_shard"}}};
  EXPECT_EQ(conflicts(options), 0);
  ShardOptions types;
  types.mixed_precision.keep_float32 = {"*bias"};
  EXPECT_EQ(conflicts(types), 1);
  types.wrapped = {{&stage, {.param_dtype = "bfloat16"}}};
  EXPECT_EQ(conflicts(types), 0);
  ShardOptions replicas;
  replicas.replica_check_interval = 5;
  EXPECT_EQ(conflicts(replicas), 1);
  replicas.wrapped = {{&stage, {.strategy = "hybrid_shard"}}};
  EXPECT_EQ(conflicts(replicas), 0);
}

}  // namespace
}  // namespace fsdp::shard
