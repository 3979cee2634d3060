#include "tools/plan/recomputation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/util/error.h"
#include "support/plan_configs.h"
#include "tools/plan/plan.h"
#include "tools/plan/text.h"

namespace fsdp::plan {
namespace {

using ::testing::HasSubstr;
using testing::small_config;

config::Config with_budget(double budget, const std::string& architecture = "llama") {
  config::Config config = small_config(architecture);
  config.model.num_hidden_layers = 6;
  config.activation_checkpointing.mode = "selective";
  config.activation_checkpointing.memory_budget = budget;
  return config;
}

int64_t saved_with(config::Config config, const char* mode) {
  config.activation_checkpointing.mode = mode;
  return record_pass(config).saved_bytes();
}

TEST(Recomputation, KeepsWhatTheBudgetAllowsAndHardlyLess) {
  for (const char* architecture : {"llama", "gpt2", "mixtral"}) {
    for (const double budget : {0.15, 0.3, 0.5, 0.8}) {
      config::Config config = with_budget(budget, architecture);
      if (config.model.architecture == "mixtral") config.model.num_experts = 2;
      const Recomputation found = choose_recomputation(config);
      EXPECT_EQ(found.most, saved_with(config, "none"));
      EXPECT_EQ(found.least, saved_with(config, "full"));
      const double share =
          static_cast<double>(found.kept - found.least) / static_cast<double>(found.most - found.least);
      EXPECT_LE(share, budget) << architecture << ": " << found.text();
      EXPECT_GE(share, budget - 0.2) << architecture << ": " << found.text();
      EXPECT_GT(found.recomputed_flops, 0);
    }
  }
}

TEST(Recomputation, OneRecomputesNothingAndZeroWholeStages) {
  EXPECT_TRUE(choose_recomputation(with_budget(1)).options.chosen->empty());
  const Recomputation all = choose_recomputation(with_budget(0));
  ASSERT_EQ(all.options.chosen->size(), 6u);
  for (const nn::StageRecomputation& stage : *all.options.chosen) EXPECT_TRUE(stage.whole);
  EXPECT_EQ(all.kept, all.least);
  EXPECT_EQ(all.text(), "everything in 6 stages");
}

TEST(Recomputation, ASmallerBudgetCostsMore) {
  double before = 0;
  for (const double budget : {0.9, 0.7, 0.5, 0.3, 0.1, 0.0}) {
    const double flops = choose_recomputation(with_budget(budget)).recomputed_flops;
    EXPECT_GT(flops, before) << budget;
    before = flops;
  }
}

TEST(Recomputation, TakesWhatSavesTheMostMemoryForAProductFirst) {
  // Keys and values of few heads are small, and so are their products; a wide product costs as much for its
  // memory as a narrow one of the same inner size, but attention over long rows costs more.
  config::Config config = with_budget(0.6);
  config.data.sequence_length = 128;
  const Recomputation found = choose_recomputation(config);
  for (const nn::StageRecomputation& stage : *found.options.chosen) {
    EXPECT_THAT(stage.operations, ::testing::Not(::testing::Contains("attention"))) << found.text();
  }
}

TEST(Recomputation, AProductIsComputedAgainOnceForAllThatNeedIt) {
  // The activation needs gate and up twice: to be computed again itself, and in its own backward.
  config::Config config = with_budget(1);
  config.activation_checkpointing.chosen.emplace();
  const double flops = record_pass(config).flops();
  const auto recompute = [&](const std::vector<std::string>& operations) {
    config.activation_checkpointing.chosen->assign(1, {.path = "model.layers.1", .operations = operations});
  };
  recompute({"up"});
  EXPECT_EQ(record_pass(config).flops() - flops, 2.0 * 2 * 64 * 128 * (2 * 352));
  recompute({"qkv", "attention", "attention_output"});
  const double attention = 2.0 * (2 * 64) * (2 * 64) * 128;
  EXPECT_EQ(record_pass(config).flops() - flops, 2.0 * 2 * 64 * 128 * (4 * 128) + attention);
}

TEST(Recomputation, AResultThatLeavesAUnitIsNotCounted) {
  config::Config config = with_budget(0.05);
  config.fsdp.exclude_stages.clear();
  config.fsdp.wrap_stages = {"attention", "feed_forward"};
  const Recomputation found = choose_recomputation(config);
  for (const nn::StageRecomputation& stage : *found.options.chosen) {
    EXPECT_THAT(stage.operations, ::testing::Not(::testing::Contains("attention_output"))) << stage.path;
  }
}

TEST(Recomputation, BudgetsThatNeedWholeStagesAreRefusedWhereRanksShareLayers) {
  config::Config config = with_budget(0.02);
  config.mesh.model = 2;
  try {
    choose_recomputation(config);
    FAIL() << "not refused";
  } catch (const util::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("activation_checkpointing.memory_budget = 0.02"));
    EXPECT_THAT(error.what(), HasSubstr("set at least 0."));
  }
}

config::Config offloading(double budget, const char* device = "auto") {
  config::Config config = with_budget(budget);
  config.activation_checkpointing.mode = "offload";
  config.training.device = device;
  return config;
}

int64_t count(const Recomputation& found, bool whole, bool offload) {
  return std::ranges::count_if(*found.options.chosen, [&](const nn::StageRecomputation& stage) {
    return stage.whole == whole && stage.offload == offload;
  });
}

TEST(Recomputation, CpusHaveNoOtherMemoryToMoveTo) {
  const Recomputation found = choose_recomputation(offloading(0.3, "cpu")),
                      selective = choose_recomputation(with_budget(0.3));
  EXPECT_FALSE(found.offloads);
  EXPECT_EQ(found.kept, selective.kept);
  EXPECT_EQ(found.text(), selective.text());
}

TEST(Recomputation, WithoutABudgetTheInputsOfStagesWaitInHostMemory) {
  const Recomputation found = choose_recomputation(offloading(0));
  EXPECT_EQ(count(found, true, true), 5);
  EXPECT_EQ(count(found, true, false), 1) << "the last one";
  EXPECT_EQ(found.kept, found.least);
  config::Config config = offloading(0);
  const int64_t full = saved_with(config, "full");
  const int64_t input = 2 * 64 * 128 * 4;
  EXPECT_EQ(full - found.least, 5 * input) << "all but that of the last stage";
  config.activation_checkpointing = found.options;
  const RecordedPass pass = record_pass(config);
  EXPECT_EQ(pass.host_bytes(), 5 * input);
  EXPECT_EQ(pass.flops() - found.flops, found.recomputed_flops);
  EXPECT_THAT(found.text(), HasSubstr("everything in 6 stages, the input moved in 5"));
}

TEST(Recomputation, TheSpeedOfTheLinkDecidesWhatIsMoved) {
  const config::Config config = offloading(0.4);
  const Recomputation fast = choose_recomputation(config,
                                                  {.flops_per_second = 1e12, .host_bytes_per_second = 1e15}),
                      slow = choose_recomputation(config,
                                                  {.flops_per_second = 1e12, .host_bytes_per_second = 1});
  EXPECT_GT(count(fast, false, true), 2);
  EXPECT_EQ(fast.recomputed_flops, 0);
  EXPECT_EQ(count(slow, false, true), 0);
  EXPECT_GT(slow.recomputed_flops, 0);
  for (const Recomputation& found : {fast, slow}) {
    EXPECT_LE(found.kept,
              found.least + static_cast<int64_t>(0.4 * static_cast<double>(found.most - found.least)))
        << found.text();
  }
}

TEST(Recomputation, MovesEverySoManythStageWhereCopiesTakeLonger) {
  config::Config config = offloading(0.57);
  config.model.num_hidden_layers = 24;
  config.activation_checkpointing.mode = "none";
  const RecordedPass pass = record_pass(config);
  const auto share = pass.shares({"model.layers.4"})[0];
  config.activation_checkpointing.mode = "offload";
  // A copy takes as long as the forward of two and a half stages.
  const double flops = 1e12, seconds = 2.5 * share.forward_flops / flops;
  const Recomputation found = choose_recomputation(
      config,
      {.flops_per_second = flops, .host_bytes_per_second = static_cast<double>(share.saved_bytes) / seconds});
  std::vector<std::string> moved;
  for (const nn::StageRecomputation& stage : *found.options.chosen) {
    if (stage.offload && !stage.whole) moved.push_back(stage.path);
  }
  std::vector<std::string> every_third;
  for (int layer = 0; layer < 24; layer += 3) every_third.push_back("model.layers." + std::to_string(layer));
  EXPECT_EQ(moved, every_third) << found.text();
  EXPECT_EQ(found.options.offload_patience, 3);
  const Recomputation without =
      choose_recomputation(config, {.flops_per_second = flops, .host_bytes_per_second = 1});
  EXPECT_LT(found.recomputed_flops, without.recomputed_flops / 2);
}

TEST(Recomputation, APlanTellsWhatIsInHostMemory) {
  const Plan plan = make_plan(offloading(0), {.world_size = 2});
  EXPECT_EQ(plan.memory.activations_on_host, 5 * 2 * 64 * 128 * 4);
  EXPECT_EQ(plan.memory.pinned, plan.memory.activations_on_host);
  EXPECT_GT(plan.time.copies, 0);
  const std::string text = plan_text(plan);
  EXPECT_THAT(text, HasSubstr("  in host memory "));
  EXPECT_THAT(text, HasSubstr("copies to and from host memory"));
  EXPECT_THAT(plan_json(plan), HasSubstr("\"stages_in_host_memory\""));
  EXPECT_EQ(make_plan(offloading(0, "cpu"), {.world_size = 2}).memory.activations_on_host, 0);
}

TEST(Recomputation, ASlowLinkToTheHostMakesAStepLonger) {
  PlanOptions machines{.world_size = 1, .host_bandwidth_gbps = 1000};
  const double fast = make_plan(offloading(0), machines).time.step();
  machines.host_bandwidth_gbps = 0.01;
  const Plan slow = make_plan(offloading(0), machines);
  EXPECT_GT(slow.time.step(), 2 * fast);
  // Each direction's copies run one after another, and only the last stage's compute is beside none.
  EXPECT_LE(slow.time.step(), slow.time.compute + slow.time.copies);
}

TEST(Recomputation, APlanTellsWhatIsKeptAndWhatItCosts) {
  const Plan plan = make_plan(with_budget(0.3), {.world_size = 2});
  EXPECT_EQ(plan.memory.saved_activations, plan.recomputation.kept);
  EXPECT_GT(plan.recomputed_flops(), 0);
  const std::string text = plan_text(plan);
  EXPECT_THAT(text, HasSubstr("  with memory_budget = 0.3 "));
  EXPECT_THAT(text, HasSubstr("% "));
  EXPECT_THAT(text, HasSubstr(plan.recomputation.text()));
  EXPECT_THAT(plan_json(plan), HasSubstr("\"operations_by_stage\""));
}

}  // namespace
}  // namespace fsdp::plan
