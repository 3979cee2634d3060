#include "tools/plan/local_steps.h"

#include <gtest/gtest.h>

#include "support/plan_configs.h"
#include "tools/plan/plan.h"
#include "tools/plan/text.h"

namespace fsdp::plan {
namespace {

config::Config local_config() {
  config::Config config = testing::small_config();
  config.fsdp.strategy = "hybrid_shard";
  config.mesh.dcn = 3;
  config.mesh.data = 2;
  config.training.local_steps = 50;
  return config;
}

int64_t shard_numel(const Plan& plan) {
  int64_t numel = 0;
  for (const auto& unit : plan.units) numel += unit.shard_numel;
  return numel;
}

TEST(PlanOfLocalSteps, HasNoTrafficBetweenReplicasInAStep) {
  config::Config config = local_config();
  const Plan local = make_plan(config, {});
  config.training.local_steps = 0;
  const Plan parallel = make_plan(config, {});
  EXPECT_EQ(local.step.traffic.all_reduces, 0);
  EXPECT_GT(parallel.step.traffic.all_reduces, 0);
  EXPECT_EQ(local.step.traffic.all_gather_bytes, parallel.step.traffic.all_gather_bytes);
  EXPECT_EQ(local.tokens_per_step(), parallel.tokens_per_step());
  EXPECT_FALSE(parallel.outer.is_on());
}

TEST(PlanOfLocalSteps, CountsTheBytesOfAnExchangeByItsType) {
  config::Config config = local_config();
  const int64_t numel = shard_numel(make_plan(config, {}));
  const Plan whole = make_plan(config, {});
  EXPECT_EQ(whole.outer.traffic.all_reduce_bytes, 4 * numel);
  EXPECT_DOUBLE_EQ(whole.outer.bytes_per_step(), 4 * static_cast<double>(numel) / 50);
  EXPECT_EQ(whole.outer.state_bytes, 8 * numel);
  config.outer_optimizer.reduce_dtype = "bfloat16";
  config.outer_optimizer.momentum = 0;
  const Plan half = make_plan(config, {});
  EXPECT_EQ(half.outer.traffic.all_reduce_bytes, 2 * numel);
  EXPECT_EQ(half.outer.state_bytes, 4 * numel);
  config.outer_optimizer.reduce_dtype = "int8";
  const Plan codes = make_plan(config, {});
  EXPECT_GT(codes.outer.traffic.all_reduce_bytes, numel);
  EXPECT_LT(codes.outer.traffic.all_reduce_bytes, numel + numel / 32);
  config.outer_optimizer.reduce_dtype = "int4";
  EXPECT_LT(make_plan(config, {}).outer.traffic.all_reduce_bytes, numel / 2 + numel / 32);
}

TEST(PlanOfLocalSteps, WaitsForWhatAnExchangeTakesLongerThanTheStepsBesideIt) {
  config::Config config = local_config();
  const PlanOptions slow{.dcn_bandwidth_gbps = 0.1};
  const Plan waiting = make_plan(config, slow);
  const double bytes = 4 * static_cast<double>(shard_numel(waiting)) * 2 * 2 / 3;
  EXPECT_NEAR(waiting.outer.seconds, bytes / (0.1e9 / 8), 1e-9);
  EXPECT_DOUBLE_EQ(waiting.outer.exposed_seconds, waiting.outer.seconds);
  EXPECT_DOUBLE_EQ(waiting.time.exchange, waiting.outer.seconds / 50);
  config.outer_optimizer.fragments = 5;
  config.outer_optimizer.fragment_delay = 2;
  const Plan beside = make_plan(config, slow);
  const double step = beside.time.step() - beside.time.exchange;
  EXPECT_NEAR(beside.outer.exposed_seconds, waiting.outer.seconds - 5 * 2 * step, 1e-9);
  EXPECT_GT(beside.memory.outer, waiting.memory.outer);
  const std::string text = plan_text(beside);
  EXPECT_NE(text.find("in addition, every 50 steps, replicas"), std::string::npos) << text;
  EXPECT_NE(text.find("waits for other replicas, on average"), std::string::npos) << text;
}

TEST(PlanOfLocalSteps, CountsTheMemoryOfTheOuterWeights) {
  config::Config config = local_config();
  const Plan local = make_plan(config, {.memory_gib = 1});
  config.training.local_steps = 0;
  const Plan parallel = make_plan(config, {.memory_gib = 1});
  EXPECT_EQ(parallel.memory_limit() - local.memory_limit(), 8 * shard_numel(local));
}

}  // namespace
}  // namespace fsdp::plan
