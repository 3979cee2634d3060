#include "shard/wrap_policy.h"

#include <gtest/gtest.h>

#include <map>

#include "support/tiny_models.h"

namespace fsdp::shard {
namespace {

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

}  // namespace
}  // namespace fsdp::shard
