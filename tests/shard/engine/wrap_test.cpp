// Units with options of their own: wrap() in a scope of EnableWrap.

#include "shard/engine/wrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "base/util/error.h"
#include "shard/engine/engine_sizes.h"
#include "shard/engine/rank_checks.h"
#include "shard/units/option_conflicts.h"
#include "shard/wrap_fixtures.h"
#include "support/chain_run.h"
#include "support/fake_collectives.h"
#include "support/log_lines.h"
#include "support/nested_models.h"
#include "support/on_mesh.h"
#include "support/sharded_run.h"
#include "support/told_step.h"

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
using testing::one_unit;
using testing::OptionsByPath;
using testing::plans_of;
using testing::refusal_of;
using testing::RunPlan;
using testing::RunResult;
using testing::wrap_paths;

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
      if (call.unit.starts_with("layers")) calls.push_back(concat(call.op, " ", call.unit, " ", call.numel));
    }
    // Matrices of 16 elements: cut over four ranks, or over the two of a slice, or over none.
    EXPECT_THAT(calls,
                ElementsAre("all_gather layers.1 8", "all_gather layers.2 4", "all_gather layers.3 4",
                            "reduce_scatter layers.3 4", "all_gather layers.1 8", "reduce_scatter layers.2 4",
                            "reduce_scatter layers.1 8", "all_reduce layers.1 8", "all_reduce layers.0 16"));
    EXPECT_NO_THROW(require_equal_replicas(*run.engine, "test"));
  });
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

}  // namespace
}  // namespace fsdp::shard
