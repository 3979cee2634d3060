#include "shard/engine/wrap_policy.h"

#include <gtest/gtest.h>

#include <map>

#include "base/util/error.h"
#include "model/nn/decoder.h"
#include "support/decoder_outline.h"
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

std::vector<std::string> unit_names(nn::Stage& root, int64_t threshold,
                                    std::vector<std::string> exclude = {"attention"}) {
  ShardOptions options;
  options.min_num_params = threshold;
  options.exclude_stages = std::move(exclude);
  std::vector<std::string> names;
  for (const UnitPlan& plan : plan_units(root, options)) names.push_back(plan.name);
  return names;
}

// A block of the tiny llama: attention 12*12 + 2*12*6 + 12*12 = 432, feed-forward 3*12*20 = 720, norms 24:
// 1176.
TEST(WrapPolicy, MakesEachBlockAUnitWhenOnlyTheBlockReachesTheThreshold) {
  auto model = testing::make_initialized(testing::tiny_options());
  EXPECT_EQ(unit_names(*model, 1176),
            (std::vector<std::string>{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
  EXPECT_EQ(unit_names(*model, 1177), std::vector<std::string>{"root"});
}

TEST(WrapPolicy, MakesEachBlockAUnitByTheDefaultThreshold) {
  nn::ModelOptions options = testing::tiny_options();
  options.hidden_size = 132;
  options.intermediate_size = 220;
  auto model = testing::make_initialized(options);
  const std::vector<std::string> names = unit_names(*model, ShardOptions{}.min_num_params);
  EXPECT_EQ(names, (std::vector<std::string>{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
}

TEST(WrapPolicy, APlanFromNamesAndSizesMakesTheUnitsOfThePolicyOnModules) {
  const nn::ModelOptions model = testing::tiny_options();
  auto modules = testing::make_initialized(model);
  for (int64_t threshold : {0, 1, 400, 450, 700, 720, 721, 1176, 1177}) {
    SCOPED_TRACE(threshold);
    ShardOptions by_size, by_policy;
    by_size.min_num_params = threshold;
    by_policy.wrap_policy = threshold_policy(threshold);
    Names planned, chosen;
    for (const UnitChoice& unit : choose_units(testing::decoder_outline(model), by_size)) {
      planned.push_back(unit.name);
    }
    for (const UnitPlan& unit : plan_units(*modules, by_policy)) chosen.push_back(unit.name);
    EXPECT_EQ(planned, chosen);
  }
}

TEST(WrapPolicy, SplitsAChildThatReachesTheThresholdAndCountsWhatIsLeft) {
  auto model = testing::make_initialized(testing::tiny_options());
  // Without its feed-forward a block has 456 parameters: under 700, so they go to the root; at 400 it is a
  // unit too.
  EXPECT_EQ(unit_names(*model, 700), (std::vector<std::string>{"root", "model.layers.0.mlp",
                                                               "model.layers.1.mlp", "model.layers.2.mlp"}));
  EXPECT_EQ(unit_names(*model, 450).size(), 7u);
}

TEST(WrapPolicy, KeepsAttentionInItsBlockUnlessAsked) {
  auto model = testing::make_initialized(testing::tiny_options());
  auto with = unit_names(*model, 430, {});
  EXPECT_NE(std::find(with.begin(), with.end(), "model.layers.0.self_attn"), with.end());
  auto without = unit_names(*model, 430);
  EXPECT_EQ(std::find(without.begin(), without.end(), "model.layers.0.self_attn"), without.end());
}

TEST(WrapPolicy, MakesLargeEmbeddingAndHeadUnitsOfTheirOwn) {
  auto options = testing::tiny_options();
  options.vocab_size = 200;
  auto model = testing::make_initialized(options);
  auto names = unit_names(*model, 1176);
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(names[1], "model.embed_tokens");
  EXPECT_EQ(names.back(), "lm_head");
}

TEST(WrapPolicy, KeepsTiedWeightsInOneUnit) {
  auto options = testing::tiny_options();
  options.vocab_size = 200;
  options.tie_word_embeddings = true;
  auto model = testing::make_initialized(options);
  ShardOptions shard;
  shard.min_num_params = 1176;
  auto plans = plan_units(*model, shard);
  EXPECT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[0].parameters[0].name, "model.embed_tokens.weight");
  for (const auto& parameter : plans[0].parameters) EXPECT_NE(parameter.name, "lm_head.weight");
}

TEST(WrapPolicy, GivesEveryParameterToExactlyOneUnit) {
  for (int64_t threshold : {0, 1, 100, 450, 720, 1176, 100000}) {
    auto model = testing::make_initialized(testing::tiny_options("gpt2"));
    ShardOptions options;
    options.min_num_params = threshold;
    std::map<const void*, int> seen;
    for (const UnitPlan& plan : plan_units(*model, options)) {
      for (const auto& parameter : plan.parameters) ++seen[parameter.tensor.unsafeGetTensorImpl()];
    }
    EXPECT_EQ(seen.size(), model->parameters().size());
    for (const auto& [id, count] : seen) EXPECT_EQ(count, 1);
  }
}
// ---- FairScale's cases (fairscale tests/nn/wrap/test_wrap.py)

TEST(WrapPolicy, WrapsAGroupWhoseChildrenOnlyTogetherReachTheThreshold) {
  auto model = group({matrix(5), group({matrix(5), matrix(5)})});
  EXPECT_EQ(names_of(*model, with_threshold(40)), (Names{"root", "1"}));
  auto plans = plan_units(*model, with_threshold(40));
  EXPECT_EQ(parameters_of(plans[0]), Names{"0.weight"});
  EXPECT_EQ(parameters_of(plans[1]), (Names{"1.0.weight", "1.1.weight"}));
}

TEST(WrapPolicy, NeverMakesAUnitOfAListButOfTheStagesInIt) {
  testing::ChainStage chain(2, 10);
  EXPECT_EQ(names_of(chain, with_threshold(101)), Names{"root"}) << "the list holds 200";
  EXPECT_EQ(names_of(chain, with_threshold(100)), (Names{"root", "layers.0", "layers.1"}));
}

TEST(WrapPolicy, ExcludedStagesAreNoUnitsButStagesInsideThemMayBe) {
  auto model = group({group({matrix(10), matrix(5)}, "outer", 200)});
  auto options = with_threshold(40);
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0", "0.0"}));
  options.exclude_stages = {"outer"};
  auto plans = plan_units(*model, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0.0"}));
  EXPECT_EQ(parameters_of(plans[0]), (Names{"0.weight", "0.1.weight"}));
}

TEST(WrapPolicy, NothingInsideALeafStageBecomesAUnit) {
  auto model = group({matrix(10), group({group({matrix(20)}, "inner")}, "outer")});
  auto options = with_threshold(40);
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0", "1.0.0"}));
  options.leaf_stages = {"outer"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0", "1"})) << "the leaf itself may be one";
  options.exclude_stages = {"outer"};  // FairScale's force_leaf_modules
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0"}));
}

TEST(WrapPolicy, ARootThatIsALeafIsTheOnlyUnit) {
  auto model = group({matrix(10), matrix(10)});
  auto options = with_threshold(0);
  options.leaf_stages = {"group"};
  EXPECT_EQ(names_of(*model, options), Names{"root"});
}

// ---- types

TEST(WrapPolicy, MakesUnitsOfTheGivenTypesWhateverTheirSize) {
  auto model = testing::make_initialized(testing::tiny_options());
  auto options = with_threshold(100'000);
  options.wrap_stages = {"block"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
  options.wrap_stages = {"feed_forward", "embedding"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "model.embed_tokens", "model.layers.0.mlp",
                                              "model.layers.1.mlp", "model.layers.2.mlp"}));
}

TEST(WrapPolicy, JoinsTypesAndThreshold) {
  auto model = group({matrix(2, "small"), matrix(3), matrix(10)});
  auto options = with_threshold(100);
  options.wrap_stages = {"small"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0", "2"}));
}

TEST(WrapPolicy, AStageOfAGivenTypeNeedsParametersThatNoInnerUnitHolds) {
  auto model = group({group({matrix(3), matrix(3)}, "hollow"), group({matrix(3)}, "hollow", 1)});
  auto options = with_threshold(1000);
  options.wrap_stages = {"linear", "hollow"};
  auto plans = plan_units(*model, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0.0", "0.1", "1", "1.0"}));
  EXPECT_TRUE(plans[0].parameters.empty()) << "the root is a unit all the same";
}

TEST(WrapPolicy, ATiedHeadOfAGivenTypeStaysWithTheEmbedding) {
  auto sizes = testing::tiny_options();
  sizes.tie_word_embeddings = true;
  auto model = testing::make_initialized(sizes);
  auto options = with_threshold(100'000);
  options.wrap_stages = {"embedding", "head", "block"};
  EXPECT_EQ(names_of(*model, options), (Names{"root", "model.layers.0", "model.layers.1", "model.layers.2"}));
}

TEST(WrapPolicy, RefusesATypeThatNoStageHas) {
  auto model = testing::make_initialized(testing::tiny_options("gpt2"));
  ShardOptions options;
  options.wrap_stages = {"block", "blok"};
  EXPECT_EQ(refusal(*model, options),
            "fsdp.wrap_stages: the model has no stage of type \"blok\", only of attention, "
            "block, embedding, feed_forward, gpt2, head; did you mean \"block\"?");
  options.wrap_stages = {};
  options.leaf_stages = {"convolution"};
  EXPECT_EQ(refusal(*model, options),
            "fsdp.leaf_stages: the model has no stage of type \"convolution\", only of "
            "attention, block, embedding, feed_forward, gpt2, head; correct it or take it out");
  options.leaf_stages = {};
  options.exclude_stages = {"atention"};
  EXPECT_EQ(
      refusal(*model, options),
      "fsdp.exclude_stages: the model has no stage of type \"atention\", only of attention, block, embedding, "
      "feed_forward, gpt2, head; did you mean \"attention\"?");
  EXPECT_EQ(refusal(*group({matrix(5), matrix(5)}), ShardOptions{}), "no error")
      << "the default serves models without attention too";
}

// ---- policies

TEST(WrapPolicy, ACallableDecidesInPlaceOfTheThreshold) {
  testing::ChainStage chain(3, 4);
  auto options = with_threshold(0);
  options.wrap_policy = [](const StageInfo& info) { return info.path == "layers.1"; };
  EXPECT_EQ(names_of(chain, options), (Names{"root", "layers.1"}));
}

TEST(WrapPolicy, ACallableIsAskedInsideOutOfEachCandidateOnce) {
  auto model = group({group({matrix(3), matrix(2, "attention")}, "outer", 7), group({}), matrix(1)});
  ShardOptions options;
  Names asked;
  options.wrap_policy = [&asked](const StageInfo& info) {
    asked.push_back(info.path + " " + info.module.type_name() + " " + std::to_string(info.numel));
    return info.numel == 9;
  };
  EXPECT_EQ(names_of(*model, options), (Names{"root", "0.0"}));
  // Not the root, not a stage of an excluded type, not one without parameters.
  EXPECT_EQ(asked, (Names{"0.0 linear 9", "0 outer 11", "2 linear 1"}));
}

TEST(WrapPolicy, LeafStagesHoldForACallable) {
  auto model = group({group({matrix(3)}, "outer"), matrix(3)});
  ShardOptions options;
  options.leaf_stages = {"outer"};
  options.wrap_policy = stage_type_policy({"linear"});
  EXPECT_EQ(names_of(*model, options), (Names{"root", "1"}));
}

TEST(WrapPolicy, PoliciesDecideByNumberOrTypeOrEither) {
  auto stage = matrix(3);
  StageInfo info = {.module = *stage, .path = "0", .numel = 9};
  EXPECT_TRUE(threshold_policy(9)(info));
  EXPECT_FALSE(threshold_policy(10)(info));
  EXPECT_TRUE(stage_type_policy({"block", "linear"})(info));
  EXPECT_FALSE(stage_type_policy({"block"})(info));
  EXPECT_FALSE(stage_type_policy({})(info));
  EXPECT_TRUE(any_of({threshold_policy(10), stage_type_policy({"linear"})})(info));
  EXPECT_TRUE(any_of({threshold_policy(9), stage_type_policy({"block"})})(info));
  EXPECT_FALSE(any_of({threshold_policy(10), stage_type_policy({"block"})})(info));
  EXPECT_FALSE(any_of({})(info));
  EXPECT_THROW(any_of({threshold_policy(1), WrapPolicy()}), util::Error);
}

// ---- tied parameters

TEST(WrapPolicy, GivesATiedParameterToTheInnermostUnitAroundItsPlaces) {
  SharingModel two(false);
  auto options = with_threshold(1);
  auto plans = plan_units(*two.root, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0", "0.0", "1"}));
  EXPECT_EQ(parameters_of(plans[1]), (Names{"0.weight", "0.0.0.weight"}));
  EXPECT_EQ(parameters_of(plans[2]), Names{"0.0.weight"});

  SharingModel three(true);
  plans = plan_units(*three.root, options);
  EXPECT_EQ(names_of(plans), (Names{"root", "0", "0.0"}));
  EXPECT_EQ(parameters_of(plans[0]), (Names{"weight", "0.0.0.weight"}));
}

// ---- order

TEST(WrapPolicy, PlansTheSameForEqualModels) {
  auto sizes = testing::tiny_options("gpt2");
  ShardOptions options = with_threshold(50);
  options.replicated_parameters = {"*.bias"};
  auto one = testing::make_initialized(sizes, 1);
  auto other = testing::make_initialized(sizes, 2);
  auto plans = plan_units(*one, options), again = plan_units(*other, options);
  ASSERT_EQ(names_of(plans), names_of(again));
  EXPECT_GT(plans.size(), 4u);
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_EQ(parameters_of(plans[i]), parameters_of(again[i]));
}

TEST(MakeDecoder, RefusesOptionsThatNoModelCanHave) {
  using Change = void (*)(nn::ModelOptions&);
  const std::vector<Change> changes = {[](nn::ModelOptions& o) { o.architecture = "bert"; },
                                       [](nn::ModelOptions& o) { o.vocab_size = 0; },
                                       [](nn::ModelOptions& o) { o.num_attention_heads = 7; },
                                       [](nn::ModelOptions& o) { o.num_key_value_heads = 3; },
                                       [](nn::ModelOptions& o) {
                                         o.num_attention_heads = o.hidden_size;  // of one element
                                         o.num_key_value_heads = 1;
                                       }};
  for (const Change change : changes) {
    nn::ModelOptions options;
    change(options);
    EXPECT_THROW(nn::make_decoder(options, at::kMeta), util::Error) << options.architecture;
  }
}

TEST(ModelTree, OfAModelOnMetaHasTheSameOutline) {
  for (const char* architecture : {"llama", "gpt2"}) {
    nn::ModelOptions options = testing::tiny_options(architecture);
    EXPECT_EQ(make_model_tree(*nn::make_decoder(options)).outline,
              make_model_tree(*nn::make_decoder(options, at::kMeta)).outline);
  }
}

TEST(ModelTree, HasAStageAndATensorForEachEntryOfItsOutline) {
  nn::ModelOptions options = testing::tiny_options();
  options.tie_word_embeddings = true;
  auto model = nn::make_decoder(options);
  model->parameters().front().set_requires_grad(false);
  const ModelTree tree = make_model_tree(*model);
  ASSERT_EQ(tree.modules.size(), tree.outline.nodes.size());
  ASSERT_EQ(tree.tensors.size(), tree.outline.parameters.size());
  for (size_t i = 0; i < tree.modules.size(); ++i) {
    const nn::Hookable* stage = tree.modules[i];
    EXPECT_EQ(stage != nullptr, tree.outline.nodes[i].is_stage);
    EXPECT_EQ(stage != nullptr ? stage->type_name() : "", tree.outline.nodes[i].type);
  }
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const nn::OutlineParameter& parameter = tree.outline.parameters[i];
    EXPECT_EQ(tree.tensors[i].sizes().vec(), parameter.shape);
    EXPECT_EQ(tree.tensors[i].numel(), parameter.numel_of_whole());
    EXPECT_EQ(tree.tensors[i].requires_grad(), parameter.requires_grad);
    EXPECT_EQ(parameter.names.size(), parameter.nodes.size());
  }
  EXPECT_FALSE(tree.outline.parameters.front().requires_grad);
  EXPECT_EQ(tree.outline.parameters.front().names,
            (std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
}

}  // namespace
}  // namespace fsdp::shard
