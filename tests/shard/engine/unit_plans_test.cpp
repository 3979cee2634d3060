// Units that are given by hand, and parameters that are taken out of their units.

#include <gtest/gtest.h>

#include "shard/engine/wrap_policy.h"
#include "support/nested_models.h"
#include "support/tiny_models.h"

namespace fsdp::shard {
namespace {

using testing::group;
using testing::matrix;
using testing::Names;
using testing::names_of;
using testing::parameters_of;
using testing::refusal;
using testing::SharingModel;
using testing::with_threshold;

bool is_replicated(const UnitPlan& plan) { return shards_nothing(plan.options.strategy); }
bool is_float32(const UnitPlan& plan) { return plan.options.storage.reduce_dtype == at::kFloat; }

// ---- replicated and fp32 parameters

TEST(UnitPlans, TakesReplicatedParametersOutOfTheirUnits) {
  testing::ChainStage chain(3, 4);
  auto options = with_threshold(16);
  options.replicated_parameters = {"bias", "layers.1.*"};
  auto plans = plan_units(chain, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "root.replicated", "layers.0", "layers.2"}));
  EXPECT_TRUE(plans[0].parameters.empty());
  EXPECT_EQ(plans[1].module, &chain);
  EXPECT_TRUE(is_replicated(plans[1]));
  EXPECT_EQ(parameters_of(plans[1]), (Names{"bias", "layers.1.weight"}));
  for (size_t i : {0, 2, 3}) EXPECT_FALSE(is_replicated(plans[i])) << plans[i].name;
}

TEST(UnitPlans, SortsSpecialParametersIntoThreeExtraUnits) {
  testing::ChainStage chain(4, 4);
  auto options = with_threshold(16);
  options.replicated_parameters = {"layers.0.*", "layers.1.*"};
  options.mixed_precision.reduce_dtype = "bfloat16";
  options.mixed_precision.keep_float32 = {"layers.1.*", "*bias"};
  auto plans = plan_units(chain, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "root.replicated", "root.float32", "root.replicated.float32",
                                    "layers.2", "layers.3"}));
  EXPECT_EQ(parameters_of(plans[1]), Names{"layers.0.weight"});
  EXPECT_EQ(parameters_of(plans[2]), Names{"bias"});
  EXPECT_EQ(parameters_of(plans[3]), Names{"layers.1.weight"});
  EXPECT_TRUE(!is_replicated(plans[2]) && is_float32(plans[2]));
  EXPECT_TRUE(is_replicated(plans[3]) && is_float32(plans[3]));
  EXPECT_FALSE(is_float32(plans[0]) || is_float32(plans[1]) || is_float32(plans[4]));
}

TEST(UnitPlans, KeepFloat32HasNoEffectWhereEverythingIsFloat32) {
  testing::ChainStage chain(2, 4);
  auto options = with_threshold(16);
  options.mixed_precision.keep_float32 = {"*"};
  EXPECT_EQ(names_of(chain, options), (Names{"root", "layers.0", "layers.1"}));
}

TEST(UnitPlans, CountsOnlyTheParametersThatRemain) {
  auto model = testing::make_initialized(testing::tiny_options());
  // A block has 1176 parameters, 24 of them in norms.
  auto options = with_threshold(1153);
  options.mixed_precision.param_dtype = "bfloat16";
  options.mixed_precision.keep_float32 = {"*norm*"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "root.float32"}));
  options.min_num_params = 1152;
  EXPECT_EQ(names_of(*model, options),
            (Names{"root", "root.float32", "model.layers.0", "model.layers.1", "model.layers.2"}));
}

TEST(UnitPlans, ATiedParameterMatchesByAnyOfItsNames) {
  auto sizes = testing::tiny_options();
  sizes.tie_word_embeddings = true;
  auto model = testing::make_initialized(sizes);
  ShardOptions options;
  options.replicated_parameters = {"lm_head.*"};
  auto plans = plan_units(*model, options);
  ASSERT_EQ(names_of(plans), (Names{"root", "root.replicated"}));
  EXPECT_EQ(parameters_of(plans[1]), Names{"model.embed_tokens.weight"});
}

TEST(UnitPlans, RefusesPatternsThatMatchNothing) {
  testing::ChainStage chain(12, 4);
  auto options = with_threshold(16);
  options.replicated_parameters = {"*bias", "layers.0.wieght"};
  EXPECT_EQ(refusal(chain, options),
            "fsdp.replicated_parameters: the pattern \"layers.0.wieght\" must match parameters "
            "such as \"bias\", but matches none; did you mean \"layers.0.weight\"?");
  options.replicated_parameters = {};
  options.mixed_precision.keep_float32 = {"*normalisation*"};
  EXPECT_EQ(refusal(chain, options), "no error") << "it has no effect in fp32";
  options.mixed_precision.param_dtype = "bfloat16";
  EXPECT_EQ(refusal(chain, options),
            "mixed_precision.keep_float32: the pattern \"*normalisation*\" must match parameters "
            "such as \"bias\", but matches none; correct it or take it out");
  options.mixed_precision.keep_float32 = {};
  options.keep_after_forward = {"root", "layers.?"};
  EXPECT_EQ(refusal(chain, options), "no error");
  options.keep_after_forward = {"layers.*", "model.layers.*"};
  EXPECT_EQ(refusal(chain, options),
            "fsdp.keep_after_forward: the pattern \"model.layers.*\" must match units (root, layers.0, "
            "layers.1, layers.2, layers.3, layers.4, layers.5, layers.6, layers.7, layers.8 and "
            "3 more), but matches none; correct it or take it out");
}

// ---- units given by hand

TEST(UnitPlans, GivenUnitsAndTheRootAreExactlyTheUnits) {
  auto inner = matrix(3, "attention");
  auto outer = group({inner, matrix(20)}, "outer", 1);
  auto model = group({matrix(30), outer});
  auto options = with_threshold(0);
  options.units = {inner.get(), outer.get()};  // excluded types too, in any order
  auto plans = plan_units(*model, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "1", "1.0"}));
  EXPECT_EQ(parameters_of(plans[0]), Names{"0.weight"});
  EXPECT_EQ(parameters_of(plans[1]), (Names{"1.weight", "1.1.weight"}));
  EXPECT_EQ(parameters_of(plans[2]), Names{"1.0.weight"});
  EXPECT_EQ(plans[2].module, inner.get());
  options.units = {model.get(), inner.get()};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "1.0"})) << "the root may be named";
}

TEST(UnitPlans, RefusesGivenStagesThatAreNoPlacesOfTheModel) {
  testing::ChainStage chain(3, 4);
  testing::MatrixStage stranger(4, 4);
  ShardOptions options;
  options.units = {&chain.layer(0), &stranger};
  EXPECT_EQ(refusal(chain, options),
            "units: expected stages inside the root; found units[1] of type block, which is not; register it "
            "as a module of the root or take it out");
  options.units = {&chain.layer(2), &chain.layer(0), &chain.layer(2)};
  EXPECT_EQ(refusal(chain, options),
            "units: expected each stage once; found \"layers.2\" again as units[2]; take it out");
  options.units = {nullptr};
  EXPECT_EQ(refusal(chain, options),
            "units: expected stages of the model; found a null pointer as units[0]; take it out");
}

TEST(UnitPlans, RefusesAGivenStageWithoutParametersOfItsOwn) {
  auto inner = matrix(3);
  auto hollow = group({inner}, "hollow");
  auto model = group({hollow});
  ShardOptions options;
  options.units = {hollow.get(), inner.get()};
  EXPECT_EQ(refusal(*model, options),
            "units: expected stages with parameters that no unit inside them holds; found \"0\" of type "
            "hollow, which has none; take it out");
  options.units = {hollow.get()};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0"}));
}

TEST(UnitPlans, AGivenUnitDisappearsWithTheLastOfItsParameters) {
  testing::ChainStage chain(2, 4);
  ShardOptions options;
  options.units = {&chain.layer(0), &chain.layer(1)};
  options.replicated_parameters = {"layers.0.*"};
  EXPECT_EQ(names_of(chain, options), (Names{"root", "root.replicated", "layers.1"}));
}

TEST(UnitPlans, RefusesGivenUnitsThatPartATiedParameter) {
  SharingModel model(true);
  ShardOptions options;
  options.units = {model.deep_group.get(), model.both.get()};
  std::string message = refusal(*model.root, options);
  EXPECT_EQ(message,
            "units: expected all places of a tied parameter in one unit; found 0.0.0.weight = 0.1.weight = "
            "1.weight in the units \"0.0\" and \"0\"; give one stage around all places and none of the "
            "stages between it and them, or untie the parameter");
  options.units = {model.both.get()};
  EXPECT_NE(refusal(*model.root, options).find("in the units \"0\" and \"root\""), std::string::npos);
  options.replicated_parameters = {"1.weight"};
  EXPECT_EQ(names_of(*model.root, options), (Names{"root", "root.replicated", "0"}))
      << "the root, around all places, holds it";

  SharingModel two(false);
  options = {};
  options.units = {two.both.get(), two.apart.get()};
  auto plans = plan_units(*two.root, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0", "1"}));
  EXPECT_EQ(parameters_of(plans[1]), (Names{"0.weight", "0.0.weight", "0.0.0.weight"}));
}

TEST(UnitPlans, RefusesGivenUnitsThatPartTheEmbeddingFromItsTiedHead) {
  auto sizes = testing::tiny_options("gpt2");
  sizes.tie_word_embeddings = true;
  auto model = testing::make_initialized(sizes);
  const nn::Stage* embedding = nullptr;
  for (const auto& module : model->modules()) {
    const auto* stage = dynamic_cast<const nn::Stage*>(module.get());
    if (embedding == nullptr && stage != nullptr && stage->type_name() == "embedding") embedding = stage;
  }
  ShardOptions options;
  options.units = {embedding};
  std::string message = refusal(*model, options);
  EXPECT_NE(message.find("lm_head.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("\"root\""), std::string::npos) << message;
}

TEST(UnitPlans, AStageAtTwoPlacesIsNoUnit) {
  auto twice = matrix(3);
  auto model = group({group({twice, twice}, "group", 1), matrix(3)});
  auto options = with_threshold(1);
  auto plans = plan_units(*model, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0", "1"}));
  EXPECT_EQ(parameters_of(plans[1]), (Names{"0.weight", "0.0.weight"}));
  options.units = {twice.get()};
  EXPECT_EQ(refusal(*model, options),
            "units: expected stages that are at one place of the model; found units[0] at \"0.0\" and "
            "\"0.1\"; make one unit of a stage around both, or a second stage");
}

}  // namespace
}  // namespace fsdp::shard
