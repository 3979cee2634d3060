#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "support/plan_configs.h"
#include "tools/plan/plan.h"
#include "tools/plan/text.h"

namespace fsdp::plan {
namespace {

using testing::small_config;
using Overrides = std::vector<std::string>;

TEST(Advice, SaysWhatToChangeUntilItFits) {
  config::Config config = small_config();
  config.data.micro_batch_size = 16;
  config.fsdp.min_num_params = 60'000;  // no attention in the root, of which advice would speak first
  const PlanOptions machines = {.world_size = 2, .memory_gib = 0.0085};
  const Plan plan = make_plan(config, machines);
  EXPECT_FALSE(plan.fits());
  ASSERT_GE(plan.advice.size(), 2);
  EXPECT_EQ(plan.advice[0].change, "activation_checkpointing.mode = full");
  EXPECT_EQ(plan.advice[1].change.substr(0, 23), "data.micro_batch_size =");
  for (size_t i = 0; i < plan.advice.size(); ++i)
    EXPECT_EQ(plan.advice[i].fits, i + 1 == plan.advice.size()) << i;
  EXPECT_NE(plan_text(plan).find("IT DOES NOT FIT"), std::string::npos);
}

TEST(Advice, IsNotGivenToARunThatFits) {
  EXPECT_TRUE(make_plan(small_config(), {.world_size = 2}).advice.empty());
}

TEST(Advice, DividesTheOptimizerStateAmongTheSlices) {
  config::Config config = small_config();
  config.fsdp.strategy = "hybrid_shard";
  config.fsdp.min_num_params = 60'000;
  config.mesh.dcn = 2;
  const Plan plan = make_plan(config, {.world_size = 4, .memory_gib = 1e-9});
  const auto found = std::ranges::find(plan.advice, "fsdp.hybrid_optimizer = global", &Advice::change);
  ASSERT_NE(found, plan.advice.end());
  ASSERT_NE(found, plan.advice.begin());
  EXPECT_LT(found->device_peak, std::prev(found)->device_peak);
}

// ---- groups of ranks that share sequences or layers

/// A long sequence, of which eight ranks have to recompute.
const Overrides kLong = {"data.sequence_length=131072", "model.max_position_embeddings=131072",
                         "mixed_precision.keep_low_precision_shards=false"};
/// Blocks of 3 billion parameters, and short sequences.
const Overrides kLargeBlocks = {"model.num_hidden_layers=4", "mesh.data=-1", "data.sequence_length=2048"};

Overrides joined(Overrides some, const Overrides& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

const char* const kMoved =
    "activation_checkpointing.mode = offload, activation_checkpointing.memory_budget = 0";

/// What is advised is that change, after the inputs of blocks are moved or alone, and a config with it is
/// planned as the advice says.
void expect_advice(const std::string& config, const Overrides& overrides, const PlanOptions& machines,
                   const std::string& change, bool is_moved = false) {
  const Plan plan = make_plan(testing::plan_config(config, overrides), machines);
  EXPECT_FALSE(plan.fits());
  ASSERT_EQ(plan.advice.size(), is_moved ? 2 : 1) << plan_text(plan);
  if (is_moved) {
    EXPECT_EQ(plan.advice.front().change, kMoved);
  }
  const Advice& advice = plan.advice.back();
  EXPECT_EQ(advice.change, change);
  EXPECT_TRUE(advice.fits);
  Overrides followed = overrides;
  PlanOptions there = machines;
  std::istringstream parts(is_moved ? concat(kMoved, ", ", change) : change);
  for (std::string part; std::getline(parts >> std::ws, part, ',');) {
    if (part.ends_with(" ranks")) {
      there.world_size = std::stoi(part);
    } else {
      followed.push_back(part);
    }
  }
  const Plan after = make_plan(testing::plan_config(config, followed), there);
  EXPECT_TRUE(after.fits()) << plan_text(after);
  EXPECT_EQ(after.memory.device_peak, advice.device_peak);
  EXPECT_DOUBLE_EQ(after.time.step(), advice.step_seconds);
  EXPECT_DOUBLE_EQ(after.tokens_per_second(), advice.tokens_per_second);
}

/// No change that is advised names an axis, whether the last one is enough or not.
void expect_no_axes(const std::string& config, const Overrides& overrides, const PlanOptions& machines) {
  const Plan plan = make_plan(testing::plan_config(config, overrides), machines);
  EXPECT_FALSE(plan.fits());
  EXPECT_FALSE(plan.advice.empty());
  for (const Advice& advice : plan.advice)
    EXPECT_EQ(advice.change.find("mesh."), std::string::npos) << advice.change;
}

TEST(Advice, MovesInputsOfBlocksToHostMemoryWhereTheyAreLarge) {
  expect_advice("llama3_8b", kLong, {.memory_gib = 48}, kMoved);
}

TEST(Advice, StreamsWhatTheGpuUpdatesFasterThanTheHost) {
  const Overrides overrides{"mesh.data=1", "mesh.dcn=1", "data.sequence_length=2048",
                            "data.micro_batch_size=1"};
  const Plan plan = make_plan(testing::plan_config("llama3_8b", overrides),
                              {.world_size = 1, .memory_gib = 1e-9, .host_bandwidth_gbps = 400});
  std::vector<std::string> changes;
  for (const Advice& advice : plan.advice) changes.push_back(advice.change);
  EXPECT_THAT(changes, ::testing::IsSupersetOf(
                           {"optimizer.offload = stream",
                            "fsdp.cpu_offload = fsdp.move_grads_to_cpu = true, optimizer.offload = stream"}));
}

TEST(Advice, CutsSequencesThatAreTooLong) {
  expect_advice("llama3_8b", kLong, {.memory_gib = 40}, "mesh.data = 4, mesh.context = 2", true);
  expect_advice("llama3_8b", joined(kLong, {"mesh.data=-1", "training.global_batch_size=16"}),
                {.world_size = 8, .memory_gib = 40}, "mesh.context = 2", true);
}

TEST(Advice, CutsLayersThatAreTooLarge) {
  const PlanOptions machines{.world_size = 32, .memory_gib = 20};
  expect_advice("llama3_405b", kLargeBlocks, machines, "mesh.model = 4");
  const Overrides half = joined(kLargeBlocks, {"mesh.model=2"});
  EXPECT_FALSE(make_plan(testing::plan_config("llama3_405b", half), machines).fits());
  expect_advice("llama3_405b", joined(half, {"mesh.sequence_parallel=false"}), machines,
                "mesh.model = 4, mesh.sequence_parallel = true");
}

TEST(Advice, CutsLogitsThatAreTooLarge) {
  expect_advice("llama3_8b",
                {"model.vocab_size=2_000_000", "model.num_hidden_layers=2", "model.hidden_size=1024",
                 "model.intermediate_size=2048", "mesh.data=-1"},
                {.world_size = 8, .memory_gib = 32}, "mesh.model = 2");
}

// Copies of shards are given up first, but only where that is enough.
TEST(Advice, GivesUpCopiesOfShards) {
  const Overrides overrides{"mesh.data=-1", "data.sequence_length=2048"};
  const auto peak = [&](bool keeps) {
    const Overrides all = joined(overrides, {keeps ? "mixed_precision.keep_low_precision_shards=true"
                                                   : "mixed_precision.keep_low_precision_shards=false"});
    return make_plan(testing::plan_config("llama3_8b", all), {.world_size = 8}).memory.device_peak;
  };
  const double between = static_cast<double>(peak(true) + peak(false)) / 2 / (int64_t{1} << 30);
  const Plan plan = make_plan(testing::plan_config("llama3_8b", overrides), {.world_size = 8});
  EXPECT_EQ(plan.memory.device_peak, peak(true));
  const PlanOptions small{.world_size = 8, .memory_gib = between};
  expect_advice("llama3_8b", overrides, small, "mixed_precision.keep_low_precision_shards = false");
}

TEST(Advice, AddsRanksThatShareWhereThereAreTooFew) {
  expect_advice("llama3_8b", joined(kLong, {"mesh.data=-1"}), {.world_size = 1, .memory_gib = 48},
                "8 ranks, mesh.context = 2");
}

TEST(Advice, NamesNoAxisThatTheConfigRefuses) {
  const PlanOptions machines{.world_size = 32, .memory_gib = 20};
  for (const Overrides& overrides :
       {Overrides{"logging.sample_every=10"}, Overrides{"data.sequence_length=2047"},
        Overrides{"data.documents=split", "data.max_tokens=2048"},
        Overrides{"model.num_attention_heads=9", "model.num_key_value_heads=9", "model.head_dim=128"}}) {
    expect_no_axes("llama3_405b", joined(kLargeBlocks, overrides), machines);
  }
  expect_no_axes("llama3_8b", joined(kLong, {"model.attention_dropout=0.1"}), {.memory_gib = 40});
}

// Shards and optimizer state are as large as before on the same ranks.
TEST(Advice, NamesNoAxisThatDoesNotHelp) {
  const Plan plan = make_plan(
      testing::plan_config("llama3_70b", {"mesh.data=-1", "mixed_precision.keep_low_precision_shards=false"}),
      {.world_size = 8});
  ASSERT_EQ(plan.advice.size(), 1);
  EXPECT_EQ(plan.advice[0].change, "16 ranks");
}

TEST(Advice, SaysWhatTimeAStepWouldTake) {
  const Plan plan = make_plan(testing::plan_config("llama3_8b", kLong), {.memory_gib = 40});
  const std::string text = plan_text(plan);
  EXPECT_NE(text.find("\n  mesh.data = 4, mesh.context = 2 "), std::string::npos) << text;
  EXPECT_NE(text.find(" s a step, "), std::string::npos);
  EXPECT_NE(text.find(" tokens/s; fits\n"), std::string::npos);
}

}  // namespace
}  // namespace fsdp::plan
