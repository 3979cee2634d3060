#include "tools/plan/time.h"

#include <gtest/gtest.h>

#include "tools/plan/plan.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {
namespace {

/// Two blocks as units of 1000 elements each over 4 ranks, and a root.
std::vector<shard::UnitSizes> units_of(const shard::GroupSizes& groups) {
  std::vector<shard::UnitSizes> units;
  for (const char* name : {"root", "model.layers.0", "model.layers.1"}) {
    shard::UnitSizes& unit = units.emplace_back();
    unit.name = name;
    unit.shard_numel = 250;
    unit.numel = unit.gathered_numel = unit.unsharded_numel = 250 * groups.shards;
    unit.groups = groups;
  }
  units.front().is_root = units.front().options.stays_after_forward = true;
  return units;
}

config::Config two_blocks() {
  config::Config config;
  config.model.num_hidden_layers = 2;
  return config;
}

constexpr double kNever = 1e-3;  ///< FLOP/s so few that all communication is hidden
/// Seconds of one collective of a unit at 3000 bytes a second: three others' 1000 bytes.
const MachineSpeed kSlow = {
    .flops_per_second = 1e30, .bytes_per_second = 3000, .replica_bytes_per_second = 1000};

TimePlan plan_time(const config::Config& config, const std::vector<shard::UnitSizes>& units,
                   const MachineSpeed& speed) {
  return plan_time(config, units, speed, record_pass(config));
}

TEST(ModelFlops, AreSixAWeightAndTwelveTimesLengthTimesWidthALayer) {
  nn::ModelOptions model;
  model.architecture = "gpt2";
  model.vocab_size = 50257;
  model.hidden_size = 768;
  model.intermediate_size = 3072;
  model.num_hidden_layers = 12;
  model.num_attention_heads = model.num_key_value_heads = 12;
  const double weights = 12 * 12 * 768.0 * 768.0 + 50257 * 768.0;  // of matrices, GPT-2's smallest
  const FlopsAToken flops = flops_a_token(model, 1024);
  EXPECT_DOUBLE_EQ(flops.model, 6 * weights + 12 * 12 * 1024.0 * 768.0);
  EXPECT_EQ(flops.hardware, flops.model);
}

TEST(HardwareFlops, AddTheForwardOfRecomputedStages) {
  for (const char* architecture : {"llama", "gpt2"}) {
    nn::ModelOptions model;
    model.architecture = architecture;
    model.vocab_size = 500;
    model.hidden_size = 96;
    model.intermediate_size = 200;
    model.num_hidden_layers = 3;
    model.num_attention_heads = model.num_key_value_heads = 4;
    const double head = 2 * 500 * 96;
    const double forward = flops_a_token(model, 64).model / 3;
    FlopsAToken flops = flops_a_token(model, 64, {.mode = "full"});
    EXPECT_DOUBLE_EQ(flops.model, 3 * forward);
    EXPECT_NEAR(flops.recomputed(), forward - head, 1e-9 * forward) << architecture;

    flops = flops_a_token(model, 64, {.mode = "full", .stage_types = {"feed_forward"}});
    const double matrices = std::string(architecture) == "llama" ? 3 : 2;
    EXPECT_NEAR(flops.recomputed(), 3 * matrices * 2 * 96 * 200, 1e-9 * forward) << architecture;
  }
}

/// A token multiplies by the router and by two experts of four.
TEST(ModelFlops, CountTheExpertsThatATokenUses) {
  nn::ModelOptions model;
  model.architecture = "mixtral";
  model.vocab_size = 500;
  model.hidden_size = 96;
  model.intermediate_size = 200;
  model.num_hidden_layers = 3;
  model.num_attention_heads = model.num_key_value_heads = 4;
  model.num_experts = 4;
  const auto forward = [&](int64_t tokens) { return flops_a_token(model, tokens).model / 3; };
  const double attention = 2 * 4 * 96.0 * 96.0, head = 2 * 500 * 96.0, expert = 2 * 3 * 96.0 * 200.0;
  // Also where tokens cannot be spread evenly, or are fewer than experts.
  for (const int64_t tokens : {64, 9, 1}) {
    const double scores = 4 * static_cast<double>(tokens) * 96;
    EXPECT_NEAR(forward(tokens), head + 3 * (attention + scores + 2 * 4 * 96.0 + 2 * expert), 1) << tokens;
  }
}

TEST(PlanTime, ExposesAllThatNoComputeHides) {
  TimePlan time = plan_time(two_blocks(), units_of({.shards = 4}), kSlow);
  // Gathers: three forward, one backward (root and last unit are there); three reductions.
  EXPECT_NEAR(time.communication, 7, 1e-9);
  EXPECT_NEAR(time.exposed, 7, 1e-9);
}

TEST(PlanTime, HidesWhatGoesBesideCompute) {
  MachineSpeed speed = kSlow;
  speed.flops_per_second = kNever;
  TimePlan time = plan_time(two_blocks(), units_of({.shards = 4}), speed);
  EXPECT_NEAR(time.communication, 7, 1e-9);
  // Left are the first unit that forward needs, the root, and the first block, which nothing computes before,
  // and at the end the reductions of the first block and of the root.
  EXPECT_NEAR(time.exposed, 4, 1e-2 * time.compute);
  EXPECT_GT(time.compute, 100);
}

TEST(PlanTime, ReducesOverReplicasBesideTheShards) {
  TimePlan time = plan_time(two_blocks(), units_of({.shards = 4, .replicas = 2}), kSlow);
  EXPECT_NEAR(time.communication, 7 + 3, 1e-9);  // each 2 * 1/2 * 1000 bytes
  EXPECT_NEAR(time.exposed, 7 + 1, 1e-9);        // all but the last go beside the next reduce-scatter
}

// Where nothing computes, a group of its own cannot make the same bytes faster. Beside compute it can: see
// StepClock in tests/run/train.
TEST(PlanTime, OfReduceScattersInTheirOwnGroupHasTheSameLinks) {
  config::Config config = two_blocks();
  config.fsdp.reduce_scatter_group = true;
  TimePlan time = plan_time(config, units_of({.shards = 4}), kSlow);
  EXPECT_NEAR(time.communication, 7, 1e-9);
  EXPECT_NEAR(time.exposed, 7, 1e-9);
}

TEST(PlanTime, OfAWorldOfOneIsCompute) {
  TimePlan time = plan_time(two_blocks(), units_of({}), kSlow);
  EXPECT_EQ(time.communication, 0);
  EXPECT_EQ(time.exposed, 0);
}

TEST(PlanTime, CountsTheFlopsOfTheModel) {
  config::Config config = two_blocks();
  config.model.hidden_size = 8;
  config.model.intermediate_size = 12;
  config.model.num_attention_heads = config.model.num_key_value_heads = 2;
  config.model.vocab_size = 10;
  config.data.micro_batch_size = 3;
  config.data.sequence_length = 5;
  const double tokens = 15, attention = 8 * 8 * 8 + 4 * 5 * 8, feed_forward = 6 * 8 * 12, head = 2 * 8 * 10;
  const double blocks = 2 * tokens * (attention + feed_forward);
  EXPECT_DOUBLE_EQ(plan_time(config, units_of({}), {}).flops, 3 * (blocks + tokens * head));
  config.activation_checkpointing.mode = "full";
  EXPECT_DOUBLE_EQ(plan_time(config, units_of({}), {}).flops, 4 * blocks + 3 * tokens * head);
}

TEST(PlanTime, HalvesThatOfProductsInEightBits) {
  config::Config config = two_blocks();
  config.model.hidden_size = 64;
  config.model.intermediate_size = 96;
  config.model.num_attention_heads = config.model.num_key_value_heads = 2;
  config.model.vocab_size = 10;
  config.mixed_precision.param_dtype = "bfloat16";
  config.data.micro_batch_size = 4;
  config.data.sequence_length = 8;
  const MachineSpeed speed = {.flops_per_second = 1};
  const TimePlan in_bf16 = plan_time(config, units_of({}), speed);
  config.training.float8 = "tensorwise";
  const TimePlan in_float8 = plan_time(config, units_of({}), speed);
  const double tokens = 32, attention = 4 * 2 * 64 * 64, feed_forward = 3 * 2 * 64 * 96;
  EXPECT_DOUBLE_EQ(in_float8.flops, in_bf16.flops);
  EXPECT_DOUBLE_EQ(in_bf16.compute - in_float8.compute, 3 * tokens * 2 * (attention + feed_forward) / 2);
  config.training.float8_exclude = {"*.mlp.*", "*.layers.0.*"};
  EXPECT_DOUBLE_EQ(in_bf16.compute - plan_time(config, units_of({}), speed).compute,
                   3 * tokens * attention / 2);
}

TEST(PlanTime, ReducesOverReplicasInTheLastMicroBatchOnly) {
  config::Config config = two_blocks();
  config.training.gradient_accumulation_steps = 5;
  const TimePlan time = plan_time(config, units_of({.shards = 4, .replicas = 2}), kSlow);
  EXPECT_NEAR(time.communication, 5 * 7 + 3, 1e-9);
}

TEST(PlanTime, AddsUpMicroBatches) {
  config::Config config = two_blocks();
  TimePlan one = plan_time(config, units_of({.shards = 4}), kSlow);
  config.training.gradient_accumulation_steps = 5;
  EXPECT_NEAR(plan_time(config, units_of({.shards = 4}), kSlow).communication, 5 * one.communication, 1e-9);
  config.training.no_sync = true;
  EXPECT_NEAR(plan_time(config, units_of({.shards = 4}), kSlow).communication, 5 * one.communication - 4 * 3,
              1e-9);
}

TEST(PlanTime, OfNodesIsThatOfTheSlowerOfTheirLinks) {
  MachineSpeed speed = kSlow;  // 4 ranks of 1000 bytes
  speed.ranks_of_node = 4;
  speed.node_bytes_per_second = 6000;
  EXPECT_NEAR(plan_time(two_blocks(), units_of({.shards = 4}), speed).communication, 7 * 0.5, 1e-9);
  // Two nodes: each takes 2000 bytes of the other, by the links of both its ranks together.
  speed.ranks_of_node = 2;
  speed.bytes_per_second = 1000;
  EXPECT_NEAR(plan_time(two_blocks(), units_of({.shards = 4}), speed).communication, 7 * 1.0, 1e-9);
  speed.bytes_per_second = 1e9;
  EXPECT_NEAR(plan_time(two_blocks(), units_of({.shards = 4}), speed).communication, 7 * 0.5, 1e-9);
  speed.node_bytes_per_second = 0;
  speed.bytes_per_second = 3000;
  EXPECT_NEAR(plan_time(two_blocks(), units_of({.shards = 4}), speed).communication, 7 * 1.0, 1e-9);
}

}  // namespace
}  // namespace fsdp::plan
