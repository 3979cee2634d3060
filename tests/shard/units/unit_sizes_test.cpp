// Sizes from a plan against those of an engine.

#include "shard/units/unit_sizes.h"

#include <gtest/gtest.h>

#include "comm/fake/fake_communicator.h"
#include "shard/engine/engine_sizes.h"
#include "support/decoder_outline.h"
#include "support/sharded_run.h"

namespace fsdp::shard {
namespace {

struct SizesCase {
  std::string name;
  std::function<void(ShardOptions&)> change;
};

void PrintTo(const SizesCase& setting, std::ostream* out) { *out << setting.name; }

class UnitSizesOf : public ::testing::TestWithParam<SizesCase> {};

TEST_P(UnitSizesOf, AModelWithoutMemoryAreThoseOfTheEngine) {
  for (const char* architecture : {"llama", "gpt2"}) {
    for (int world : {1, 2, 3, 64}) {
      SCOPED_TRACE(concat(architecture, ", ", world, " ranks"));
      ShardOptions options;
      options.min_num_params = 200;
      GetParam().change(options);
      nn::ModelOptions model = testing::tiny_options(architecture);
      auto sharded = testing::make_initialized(model);
      auto engine = fully_shard(*sharded, options, std::make_shared<comm::FakeCommunicator>(world));
      auto planned = nn::make_decoder(model, at::kMeta);
      std::vector<UnitSizes> expected = unit_sizes(*engine);
      std::vector<UnitSizes> sizes = unit_sizes(*planned, options, {.data = world});
      EXPECT_EQ(sizes, unit_sizes(testing::decoder_outline(model), options, {.data = world}));
      ASSERT_EQ(sizes.size(), expected.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(sizes[i], expected[i]) << expected[i].name;
        EXPECT_EQ(sizes[i].shard_bytes(),
                  static_cast<int64_t>(engine->units()[i]->storage().shard().nbytes()));
        EXPECT_EQ(sizes[i].source_bytes(), engine->units()[i]->storage().source_bytes());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, UnitSizesOf,
    ::testing::Values(SizesCase{"defaults", [](ShardOptions&) {}},
                      SizesCase{"shard_grad_op", [](ShardOptions& o) { o.strategy = "shard_grad_op"; }},
                      SizesCase{"no_shard", [](ShardOptions& o) { o.strategy = "no_shard"; }},
                      SizesCase{"bf16", [](ShardOptions& o) { o.mixed_precision.param_dtype = "bfloat16"; }},
                      SizesCase{"bf16_with_exceptions",
                                [](ShardOptions& o) {
                                  o.mixed_precision.param_dtype = o.mixed_precision.reduce_dtype = "bfloat16";
                                  o.mixed_precision.keep_float32 = {"*weight"};
                                  o.replicated_parameters = {"*0*"};
                                }},
                      SizesCase{"low_precision_shards",
                                [](ShardOptions& o) {
                                  o.mixed_precision.param_dtype = "bfloat16";
                                  o.mixed_precision.keep_low_precision_shards = true;
                                }},
                      SizesCase{"offload", [](ShardOptions& o) { o.cpu_offload = true; }},
                      SizesCase{"stored_in_bf16",
                                [](ShardOptions& o) {
                                  o.param_storage = o.mixed_precision.param_dtype = "bfloat16";
                                  o.mixed_precision.keep_float32 = {"*.0.*"};
                                }},
                      SizesCase{"whole_in_fp16",
                                [](ShardOptions& o) {
                                  o.strategy = "no_shard";
                                  o.param_storage = o.mixed_precision.param_dtype = "float16";
                                }},
                      SizesCase{"per_parameter",
                                [](ShardOptions& o) {
                                  o.layout = "per_parameter";
                                  o.mixed_precision.reduce_dtype = "bfloat16";
                                }},
                      SizesCase{"units_that_stay", [](ShardOptions& o) { o.keep_after_forward = {"*1*"}; }}),
    [](const auto& info) { return info.param.name; });

TEST(UnitSizes, ReportOptionsThatContradictEachOtherAsTheEngineDoes) {
  auto model = nn::make_decoder(testing::tiny_options(), at::kMeta);
  ShardOptions options;
  options.move_grads_to_cpu = true;
  EXPECT_THROW(unit_sizes(*model, options, {.data = 2}), util::Error);
}

TEST(UnitSizes, OfModulesGoByCallablesThatSeeThem) {
  nn::ModelOptions model = testing::tiny_options();
  auto modules = nn::make_decoder(model, at::kMeta);
  ShardOptions options;
  options.wrap_policy = [&](const StageInfo& info) {
    return info.module.type_name() == "block" && info.path != "model.layers.1";
  };
  std::vector<std::string> names;
  for (const UnitSizes& unit : unit_sizes(*modules, options, {.data = 2})) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"root", "model.layers.0", "model.layers.2"}));
}

/// Two stages that share one parameter, and one that is frozen.
nn::ModelOutline three_stages() {
  nn::ModelOutline model;
  model.nodes = {{.path = "", .is_stage = true, .type = "model", .parent = 0, .end = 4},
                 {.path = "a", .is_stage = true, .type = "part", .parent = 0, .end = 2},
                 {.path = "b", .is_stage = true, .type = "part", .parent = 0, .end = 3},
                 {.path = "c", .is_stage = true, .type = "part", .parent = 0, .end = 4}};
  model.parameters = {{.shape = {5, 4}, .names = {"a.weight", "b.weight"}, .nodes = {1, 2}},
                      {.shape = {3}, .names = {"b.bias"}, .nodes = {2}},
                      {.shape = {7}, .requires_grad = false, .names = {"c.weight"}, .nodes = {3}}};
  return model;
}

TEST(UnitSizes, OfAnOutlineNeedNoModules) {
  ShardOptions options;
  options.min_num_params = 1;
  const std::vector<UnitSizes> units = unit_sizes(three_stages(), options, {.data = 2});
  ASSERT_EQ(units.size(), 3);
  EXPECT_EQ(units[0].name, "root");
  EXPECT_EQ(units[0].numel, 20) << "what two stages share is in the unit around both";
  EXPECT_EQ(units[1].name, "b");
  EXPECT_EQ(units[1].shard_numel, 2);
  EXPECT_TRUE(units[1].has_trainable_parameters);
  EXPECT_EQ(units[2].name, "c");
  EXPECT_FALSE(units[2].has_trainable_parameters);
}

TEST(GroupSizes, FollowTheStrategy) {
  const comm::MeshShape mesh = {.dcn = 2, .data = 4};
  auto expect = [&](const char* strategy, int shard, int replicas) {
    GroupSizes sizes = group_sizes(mesh, strategy);
    EXPECT_EQ(sizes.shards, shard) << strategy;
    EXPECT_EQ(sizes.replicas, replicas) << strategy;
  };
  expect("full_shard", 8, 1);
  expect("shard_grad_op", 8, 1);
  expect("hybrid_shard", 4, 2);
  expect("no_shard", 1, 8);
}

/// Two units of 100 elements over 2 x 4 ranks.
std::vector<UnitSizes> two_units() {
  std::vector<UnitSizes> units;
  for (const char* name : {"root", "a", "b"}) {
    UnitSizes& unit = units.emplace_back();
    unit.name = name;
    unit.numel = unit.gathered_numel = unit.unsharded_numel = 100;
    unit.shard_numel = 25;
    unit.groups = {.shards = 4, .replicas = 2};
  }
  units.front().is_root = units.front().options.stays_after_forward = true;
  return units;
}

TEST(StepFormulaOfSizes, ReducesTheShardOverReplicasAfterEachReduceScatter) {
  std::vector<UnitSizes> units = two_units();
  StepFormula formula = step_formula(units, {});
  EXPECT_EQ(formula.traffic.reduce_scatters, 3);
  EXPECT_EQ(formula.traffic.all_reduces, 3);
  EXPECT_EQ(formula.traffic.all_reduce_bytes, 3 * 25 * 4);
}

TEST(StepFormulaOfSizes, HoldsWhatIsGatheredBesideTheUnitUntilItIsCopiedOut) {
  std::vector<UnitSizes> units = two_units();
  const int64_t in_place = step_formula(units, {}).unsharded_bytes;
  EXPECT_EQ(in_place, 2 * 400 + 3 * 400);  // the root, and unit, gradient and one buffer more
  for (UnitSizes& unit : units) {
    unit.shard_numel = 26;
    unit.gathered_numel = 104;
    unit.gathers_in_place = false;
  }
  // Gradients are as long as what is gathered. The gather of the next unit holds both.
  EXPECT_EQ(step_formula(units, {}).unsharded_bytes, 400 + 416 + 400 + 416 + (400 + 416));
}

}  // namespace
}  // namespace fsdp::shard
