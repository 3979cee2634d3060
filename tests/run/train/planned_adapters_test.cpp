// Plans of runs that train adapters, against what the engine measures.

#include <algorithm>

#include "support/plan_of.h"
#include "tools/plan/plan.h"

namespace fsdp::train {
namespace {

using namespace plan;
using testing::lora;
using testing::muon;
using testing::recompute;
using testing::small_config;
using testing::stored_in_bf16;

INSTANTIATE_TEST_SUITE_P(Adapters, PlanOf,
                         ::testing::Values(PlannedCase{"lora", 4, "llama", lora},
                                           PlannedCase{"lora_gpt2", 2, "gpt2", lora},
                                           PlannedCase{"lora_stored_in_bf16", 4, "llama",
                                                       [](auto& c) {
                                                         stored_in_bf16(c);
                                                         lora(c);
                                                         c.data.micro_batch_size = 4;
                                                       }},
                                           PlannedCase{"lora_gathered_once", 4, "llama",
                                                       [](auto& c) {
                                                         lora(c);
                                                         c.training.gradient_accumulation_steps = 3;
                                                         c.fsdp.keep_after_forward = {"*"};
                                                       }},
                                           PlannedCase{"lora_accumulation_without_sync", 2, "llama",
                                                       [](auto& c) {
                                                         lora(c);
                                                         c.training.gradient_accumulation_steps = 3;
                                                         c.training.no_sync = true;
                                                       }},
                                           PlannedCase{"lora_recomputed_some_layers", 4, "llama",
                                                       [](auto& c) {
                                                         lora(c);
                                                         recompute(c);
                                                         c.lora.targets = {"*q_proj", "*v_proj"};
                                                         c.lora.dropout = 0.1;
                                                       }},
                                           PlannedCase{"lora_muon", 2, "llama",
                                                       [](auto& c) {
                                                         muon(c);
                                                         lora(c);
                                                       }},
                                           PlannedCase{"lora_beside_nf4", 4, "llama",
                                                       [](auto& c) {
                                                         stored_in_bf16(c);
                                                         lora(c);
                                                         c.lora.quantize = "nf4";
                                                         c.data.micro_batch_size = 5;
                                                       }},
                                           PlannedCase{"lora_beside_int8_recomputed", 2, "llama",
                                                       [](auto& c) {
                                                         lora(c);
                                                         recompute(c);
                                                         c.lora.quantize = "int8";
                                                         c.data.micro_batch_size = 4;
                                                       }},
                                           PlannedCase{"dora", 2, "llama",
                                                       [](auto& c) {
                                                         lora(c);
                                                         c.lora.dora = true;
                                                       }}),
                         [](const auto& info) { return info.param.name; });

TEST(Plan, ReducesAndUpdatesAdaptersAloneAndGathersKeptFrozenUnitsOnceAStep) {
  config::Config config = small_config();
  lora(config);
  config.lora.targets = {"*q_proj", "*up_proj"};
  config.training.gradient_accumulation_steps = 3;
  config.fsdp.keep_after_forward = {"*"};
  const Plan plan = make_plan(config, {.world_size = 4});
  const auto trained = std::ranges::find(plan.units, "root.trained", &shard::UnitSizes::name);
  ASSERT_NE(trained, plan.units.end());
  EXPECT_EQ(trained->numel, 3 * 8 * ((128 + 128) + (128 + 352)));
  EXPECT_EQ(plan.memory.gradients, 4 * trained->shard_numel);
  EXPECT_EQ(plan.memory.optimizer, 2 * 4 * trained->shard_numel);
  int64_t frozen = 0, frozen_bytes = 0;
  for (const shard::UnitSizes& unit : plan.units) {
    if (unit.name == "root.trained" || !unit.is_cut()) continue;
    ++frozen;
    frozen_bytes += 4 * unit.shard_numel;
  }
  const shard::Traffic& traffic = plan.step.traffic;
  EXPECT_EQ(traffic.reduce_scatters, 3);
  EXPECT_EQ(traffic.reduce_scatter_bytes, 3 * 4 * trained->shard_numel);
  EXPECT_EQ(traffic.all_gathers, frozen + 3);
  EXPECT_EQ(traffic.all_gather_bytes, frozen_bytes + 3 * 4 * trained->shard_numel);
}

TEST(Plan, SaysWhatItSavesToKeepFrozenUnitsGatheredWhereMemorySuffices) {
  config::Config config = small_config();
  lora(config);
  config.training.gradient_accumulation_steps = 3;
  const auto says = [&](double memory_gib) {
    const Plan plan = make_plan(config, {.world_size = 4, .memory_gib = memory_gib});
    return std::ranges::any_of(plan.warnings, [](const std::string& warning) {
      return warning.find("set fsdp.keep_after_forward = [\"*\"]") != std::string::npos;
    });
  };
  const double peak = static_cast<double>(make_plan(config, {.world_size = 4}).memory.device_peak);
  EXPECT_TRUE(says(16));
  EXPECT_FALSE(says(1.01 * peak / (1 << 30)));
  config.fsdp.keep_after_forward = {"*"};
  EXPECT_FALSE(says(16));
}

}  // namespace
}  // namespace fsdp::train
