// Plans that do not fit a model.

#include "model/nn/parallel_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/fake/fake_communicator.h"
#include "model/nn/decoder.h"
#include "model/nn/parallelize.h"
#include "support/tiny_models.h"

namespace fsdp::nn {
namespace {

using ::testing::HasSubstr;

ModelOptions divided_options(const std::string& architecture = "llama") {
  ModelOptions options = testing::tiny_options(architecture);
  options.hidden_size = 48;
  options.intermediate_size = 60;
  options.num_attention_heads = 12;
  options.num_key_value_heads = architecture == "llama" ? 3 : 12;
  return options;
}

ParallelPlan default_plan(const ModelOptions& options) {
  return model_kind(options.architecture).plan(options, {});
}

std::string refusal(const ModelOptions& options, const ParallelPlan& plan, int64_t ranks) {
  try {
    parameter_parts(*make_decoder(options, at::kMeta), plan, ranks, 0);
    return "";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
}

/// The plan with another style for these modules.
ParallelPlan changed(ParallelPlan plan, const std::string& modules, const ParallelStyle& style) {
  for (ParallelEntry& entry : plan) {
    if (entry.modules == modules) entry.style = style;
  }
  return plan;
}
ParallelPlan without(ParallelPlan plan, const std::string& modules) {
  std::erase_if(plan, [&](const ParallelEntry& entry) { return entry.modules == modules; });
  return plan;
}

TEST(ParallelPlan, FitsItsFamily) {
  for (const char* architecture : {"llama", "gpt2"}) {
    EXPECT_EQ(refusal(divided_options(architecture), default_plan(divided_options(architecture)), 3), "");
  }
}

TEST(ParallelPlan, IsRefusedWithTheArithmeticWhereSizesDoNotDivide) {
  const ModelOptions options = divided_options();
  EXPECT_THAT(refusal(options, default_plan(options), 5),
              HasSubstr("model.layers.0.self_attn.q_proj: expected heads that "
                        "the ranks divide; found 12 heads and 5 ranks (12 = 2 "
                        "x 5 + 2)"));
  EXPECT_THAT(
      refusal(options, default_plan(options), 2),
      HasSubstr("self_attn.k_proj: expected a number of heads that divides, or is divided by, the number of "
                "ranks; found 3 heads and 2 ranks (3 = 1 x 2 + 1)"));
  EXPECT_THAT(refusal(options, default_plan(options), 4), HasSubstr("3 heads and 4 ranks (4 = 1 x 3 + 1)"));
  EXPECT_EQ(refusal(options, default_plan(options), 1), "");
  ModelOptions odd = options;
  odd.intermediate_size = 65;
  EXPECT_THAT(refusal(odd, default_plan(odd), 3),
              HasSubstr("mlp.gate_proj: expected features that the ranks divide; found "
                        "65 features and 3 ranks (65 = 21 x 3 + 2)"));
  ModelOptions tiny = options;
  tiny.vocab_size = 4;
  EXPECT_THAT(refusal(tiny, default_plan(tiny), 3),
              HasSubstr("a vocabulary of 4 in parts of 2 leaves some of 3 ranks"));
  ModelOptions gpt2 = divided_options("gpt2");
  EXPECT_THAT(refusal(gpt2, default_plan(gpt2), 5),
              HasSubstr("attn.c_attn: expected heads that the ranks divide"));
}

TEST(ParallelPlan, IsRefusedWhereALayerCannotTakeWhatComes) {
  const ModelOptions options = divided_options();
  const ParallelPlan plan = default_plan(options);
  EXPECT_THAT(
      refusal(options, without(plan, "model.norm"), 3),
      HasSubstr(
          "model.norm: expected a layer that works on Shard(1); found Replicate; add SequenceParallel"));
  EXPECT_THAT(
      refusal(options, changed(plan, "model.layers.*.mlp", PrepareModuleInput{}), 3),
      HasSubstr("mlp: expected the input Shard(1); found Replicate; the layer before it leaves Shard(1)"));
  EXPECT_THAT(
      refusal(options,
              changed(plan, "model.layers.*.mlp", PrepareModuleInput{.input = Shard{1}, .desired = Shard{1}}),
              3),
      HasSubstr("mlp.gate_proj: expected the input Shard(1); found Replicate"));
  EXPECT_THAT(
      refusal(options, changed(plan, "model.layers.*.self_attn.o_proj", RowwiseParallel{}), 3),
      HasSubstr("o_proj: expected the output Shard(1); found Replicate; the next layer takes Shard(1)"));
  EXPECT_THAT(
      refusal(options, changed(plan, "model.layers.*.mlp.down_proj", ColwiseParallel{}), 3),
      HasSubstr("expected a RowwiseParallel layer of Shard(-1) after one that leaves Shard(-1); found none"));
  EXPECT_THAT(refusal(options, changed(plan, "lm_head", ColwiseParallel{}), 3),
              HasSubstr("lm_head: expected the input Shard(1); found Replicate"));
  EXPECT_THAT(refusal(options, without(plan, "lm_head"), 3),
              HasSubstr("lm_head: expected the input Shard(1); found Replicate"));
  EXPECT_THAT(refusal(options, without(plan, "model.layers.*.self_attn.k_proj"), 3),
              HasSubstr("k_proj: expected a style for each linear layer of model.layers.0.self_attn"));
  EXPECT_THAT(
      refusal(options,
              changed(plan, "model.embed_tokens", RowwiseParallel{.input = Replicate{}, .output = Shard{2}}),
              3),
      HasSubstr("expected activations that are cut on dimension 1, the sequence; found an embedding that "
                "leaves Shard(2)"));
}

TEST(ParallelPlan, IsRefusedForModulesThatItDoesNotFit) {
  const ModelOptions options = divided_options();
  ParallelPlan plan = default_plan(options);
  plan.push_back({"model.layer.*.mlp", PrepareModuleInput{}});
  EXPECT_THAT(refusal(options, plan, 3),
              HasSubstr("expected a pattern of the model's modules; found none that matches"));
  EXPECT_THAT(refusal(options, {{"model.norm", ColwiseParallel{}}}, 3),
              HasSubstr("model.norm: expected ColwiseParallel of a linear layer or the head"));
  EXPECT_THAT(refusal(options, {{"model.norm", RowwiseParallel{}}}, 3),
              HasSubstr("a linear layer or an embedding"));
  EXPECT_THAT(refusal(options, {{"lm_head", SequenceParallel{}}}, 3), HasSubstr("a norm or an embedding"));
  EXPECT_THAT(refusal(options, {{"model.norm", PrepareModuleInput{}}}, 3), HasSubstr("a stage"));
  plan = default_plan(options);
  plan.push_back({"model.layers.0.mlp", PrepareModuleInput{}});
  EXPECT_THAT(refusal(options, plan, 3), HasSubstr("expected one style of a kind; found two entries"));
}

TEST(ParallelPlan, CutsTiedEmbeddingsAlikeOrNotAtAll) {
  ModelOptions options = divided_options();
  options.tie_word_embeddings = true;
  EXPECT_EQ(refusal(options, default_plan(options), 3), "");
  const ParallelPlan whole_between = model_kind("llama").plan(options, {.sequence_parallel = false});
  EXPECT_THAT(refusal(options, without(whole_between, "lm_head"), 3),
              HasSubstr("lm_head: expected the same cut of model.embed_tokens.weight wherever it is used"));
}

TEST(ParallelPlan, IsAppliedWholeOrNotAtAll) {
  const ModelOptions options = divided_options();
  const auto model = make_decoder(options, at::kMeta);
  ParallelPlan plan = default_plan(options);
  plan.push_back({"nothing", SequenceParallel{}});
  const auto group = std::make_shared<comm::FakeCommunicator>(3);
  EXPECT_THROW(parallelize(*model, plan, group), util::Error);
  EXPECT_FALSE(is_parallel(*model));
  plan.pop_back();
  parallelize(*model, plan, group);
  EXPECT_THROW(parallelize(*model, plan, group), util::Error);  // again
}

}  // namespace
}  // namespace fsdp::nn
