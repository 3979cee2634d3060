// The plans of configs/plan, and of what no step tells.

#include "tools/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/tensor/tensor_memory.h"
#include "base/util/error.h"
#include "base/util/system.h"
#include "run/train/dry_run.h"
#include "support/plan_configs.h"
#include "tools/plan/text.h"

namespace fsdp::train {
namespace {

using namespace plan;
using testing::adafactor;
using testing::float8;
using testing::lamb;
using testing::muon;
using testing::plan_config;
using testing::small_config;

// Units that wrap() (shard/engine/wrap.h) puts into different places and groups; a config has no such units.
TEST(PlanMemory, CountsEachUnitWhereItIs) {
  const config::Config config = small_config();
  const comm::MeshShape mesh{.data = 4};
  std::vector<shard::UnitSizes> units = planned_units(config, mesh);
  const RecordedPass pass = record_pass(config);
  const MemoryPlan all = plan_memory(config, units, pass);
  shard::UnitSizes& moved = units.back();
  moved.options.storage.cpu_offload = moved.options.storage.move_grads_to_cpu = true;
  const MemoryPlan one = plan_memory(config, units, pass);
  EXPECT_EQ(one.shards, all.shards);
  EXPECT_EQ(one.optimizer, all.optimizer);
  EXPECT_EQ(one.buffers, all.buffers);
  const int64_t at_rest = 3 * moved.shard_bytes();  // with Adam's two averages
  const int64_t copies = kShardsOnTheDevice * moved.shard_bytes() + moved.reduce_payload_bytes();
  EXPECT_LE(one.device_peak, all.device_peak - at_rest + copies);
  EXPECT_GE(one.device_peak, all.device_peak - at_rest + copies - moved.shard_gradient_bytes());
  for (shard::UnitSizes& unit : units) {
    unit.options.storage.cpu_offload = unit.options.storage.move_grads_to_cpu = true;
  }
  config::Config offloaded = config;
  offloaded.fsdp.cpu_offload = offloaded.fsdp.move_grads_to_cpu = true;
  EXPECT_EQ(plan_memory(config, units, pass).device_peak,
            device_peak(offloaded, planned_units(offloaded, mesh), pass));
}

TEST(Plan, OfTheTenBlocksGivesThePayloadsOfTheNotes) {
  const Plan plan = make_plan(plan_config("ten_blocks"), {});
  EXPECT_EQ(plan.mesh.world_size(), 8);
  // The root, which is the embedding and the head, adds a gather and a reduction of its own.
  EXPECT_EQ(plan.step.traffic.all_gathers + plan.step.traffic.reduce_scatters, 30 + 2);
  const shard::UnitSizes& block = plan.units.at(1);
  EXPECT_NEAR(static_cast<double>(block.numel), 1.6e9, 1e5);
  EXPECT_NEAR(static_cast<double>(block.gather_payload_bytes()), 0.8e9, 1e5);
  const std::string text = plan_text(plan);
  EXPECT_NE(
      text.find(
          "model.layers.0 ... model.layers.9              30    1,600,032,000      0.80 GB     24.00 GB"),
      std::string::npos)
      << text;
}

// Two units of 6.4 GB and two shards of 0.8 GB.
TEST(Plan, OfTheTenBlocksGivesTheBuffersOfTheNotes) {
  const Plan plan = make_plan(plan_config("ten_blocks"), {});
  EXPECT_NEAR(static_cast<double>(plan.step.separate_forward_bytes), 14.4e9, 1e6);
  const std::string text = plan_text(plan);
  EXPECT_NE(text.find("13.4 GiB  14.40 GB; with two gradients 27.20 GB"), std::string::npos) << text;
  EXPECT_LT(plan.memory.buffers, plan.step.separate_buffers_bytes);
}

TEST(Plan, CountsWhatMuonExchangesForWholeMatrices) {
  config::Config config = small_config();
  EXPECT_EQ(make_plan(config, {.world_size = 2}).optimizer_traffic.all_gathers, 0);
  muon(config);
  const Plan plan = make_plan(config, {.world_size = 2});
  int64_t units = 0, bytes = 0;
  for (const shard::UnitSizes& unit : plan.units) {
    // The root unit has the attentions here, beside embedding and head.
    if (unit.name.find("layers") == std::string::npos && !unit.is_root) continue;
    ++units;
    bytes += unit.shard_bytes();
  }
  EXPECT_EQ(units, 4);
  EXPECT_EQ(plan.optimizer_traffic.all_gathers, units);
  EXPECT_EQ(plan.optimizer_traffic.reduce_scatters, units);
  EXPECT_EQ(plan.optimizer_traffic.all_gather_bytes, bytes);
  EXPECT_NE(plan_text(plan).find("whole matrices for muon"), std::string::npos);
  config.fsdp.strategy = "no_shard";
  EXPECT_GT(make_plan(config, {.world_size = 2}).optimizer_traffic.all_reduces, 0);
  EXPECT_EQ(make_plan(config, {.world_size = 1}).optimizer_traffic.all_reduces, 0);
}

TEST(Plan, CountsTheSumsOverTensors) {
  config::Config config = small_config();
  lamb(config);
  const Plan plan = make_plan(config, {.world_size = 2});
  size_t tensors = 0;
  for (const shard::UnitSizes& unit : plan.units) tensors += unit.parameters.size();
  EXPECT_EQ(plan.optimizer_traffic.all_reduces, static_cast<int64_t>(plan.units.size()));
  EXPECT_EQ(plan.optimizer_traffic.all_reduce_bytes, static_cast<int64_t>(16 * tensors));
  EXPECT_NE(plan_text(plan).find("in addition, sums over tensors for lamb"), std::string::npos);
  EXPECT_EQ(make_plan(config, {.world_size = 1}).optimizer_traffic.all_reduces, 0);

  adafactor(config);
  const Plan factored = make_plan(config, {.world_size = 2});
  int64_t numbers = 0;
  for (const shard::UnitSizes& unit : factored.units) {
    for (const shard::ParameterSizes& parameter : unit.parameters) {
      numbers += 2 + (parameter.shape.size() == 2 ? parameter.shape[0] + parameter.shape[1] : 0);
    }
  }
  EXPECT_EQ(factored.optimizer_traffic.all_reduces, 2 * static_cast<int64_t>(factored.units.size()));
  EXPECT_EQ(factored.optimizer_traffic.all_reduce_bytes, 8 * numbers);
  EXPECT_LT(factored.memory.optimizer, plan.memory.optimizer / 20);
}

TEST(Plan, CountsAttentionOverCutSequences) {
  config::Config config = small_config();
  config.mesh.context = 4;
  config.model.num_key_value_heads = 2;
  const Plan plan = make_plan(config, {.world_size = 8});
  const int64_t keys = 2 * 16 * 2 * 32 * 2;  // rows, tokens of a rank, heads, width; keys and values
  EXPECT_EQ(plan.attention_traffic.shifts, 3 * (3 + 3 + 3));
  EXPECT_EQ(plan.attention_traffic.shift_bytes, 3 * (3 + 3 + 3) * keys * 4);
  EXPECT_EQ(plan.tokens_per_step(), 2 * 2 * 64);
  EXPECT_NE(plan_text(plan).find("in addition, attention over mesh.context"), std::string::npos);
  EXPECT_NE(plan_text(plan).find("256 tokens a step (2 groups of 4 ranks x 1 micro-batches"),
            std::string::npos)
      << plan_text(plan);
}

// On a GPU all rows are one chunk of the loss, on a CPU many are; each chunk gathers numbers of its rows.
TEST(Plan, CountsTheCollectivesOfLayersOnTheDevice) {
  config::Config config = plan_config("llama3_8b");
  config.mesh.model = 8;
  config.mesh.data = 1;
  const int64_t of_blocks = 2 * (2 * 32 + 1) + 2 * 32;  // recomputed
  config.training.device = "cuda";
  EXPECT_EQ(layer_traffic(config, {.model = 8}).all_gathers, of_blocks + 1);
  config.training.device = "cpu";
  EXPECT_GT(layer_traffic(config, {.model = 8}).all_gathers, of_blocks + 1);
  EXPECT_EQ(layer_traffic(config, {.model = 8}).reduce_scatters, of_blocks);
  EXPECT_EQ(layer_traffic(config, {.model = 1}), shard::Traffic());
}

TEST(Plan, SaysThatLinearLayersAreInFloat8) {
  config::Config config = small_config();
  EXPECT_EQ(plan_text(make_plan(config, {.world_size = 2})).find("float8"), std::string::npos);
  float8(config);
  const std::string text = plan_text(make_plan(config, {.world_size = 2}));
  EXPECT_NE(text.find(", bfloat16 and float8 reduced in float32"), std::string::npos) << text;
  EXPECT_NE(text.find(" TFLOP, float8 twice as fast\n"), std::string::npos) << text;
}

TEST(Plan, OfATrillionParametersTakesNeitherTimeNorMemory) {
  const config::Config config = plan_config("1t");
  const int64_t resident = util::resident_bytes();
  util::TensorMemory memory;
  auto begin = std::chrono::steady_clock::now();
  const Plan plan = make_plan(config, {});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GT(plan.parameters, 1'000'000'000'000);
  EXPECT_EQ(plan.mesh.world_size(), 256);
  EXPECT_LT(seconds, 30);  // touching each parameter would take minutes
  EXPECT_LT(memory.peak_bytes(), 1 << 20);
  EXPECT_LT(util::resident_bytes() - resident, 50 << 20);
  EXPECT_TRUE(plan.fits());
}

TEST(Plan, OfTheOtherConfigsHoldsWhatTheySay) {
  auto expect = [](const char* name, double parameters, int world, double memory_gib) {
    const Plan plan = make_plan(plan_config(name), {.memory_gib = memory_gib});
    EXPECT_NEAR(static_cast<double>(plan.parameters), parameters, 0.02 * parameters) << name;
    EXPECT_EQ(plan.mesh.world_size(), world) << name;
    EXPECT_TRUE(plan.fits()) << plan_text(plan);
  };
  expect("13b", 12.85e9, 8, 40);
  expect("175b", 174.6e9, 128, 40);
  expect("llama3_8b", 8.03e9, 8, 80);
  expect("llama3_70b", 70.6e9, 64, 80);
  expect("llama3_405b", 405.9e9, 768, 80);
  expect("llama2_2b", 1.74e9, 4, 32);
}

TEST(Plan, FindsTheLargestMicroBatchThatFits) {
  config::Config config = small_config();
  const PlanOptions machines = {.world_size = 4, .memory_gib = 0.1};
  const int64_t largest = make_plan(config, machines).largest_micro_batch;
  ASSERT_GT(largest, 2);
  config.data.micro_batch_size = largest;
  EXPECT_TRUE(make_plan(config, machines).fits());
  config.data.micro_batch_size = largest + 1;
  EXPECT_FALSE(make_plan(config, machines).fits());
}

TEST(Plan, TakesTheWorldFromTheOptionOrTheMesh) {
  config::Config config = small_config();
  EXPECT_EQ(make_plan(config, {}).mesh.world_size(), 1);
  EXPECT_EQ(make_plan(config, {.world_size = 12}).mesh.data, 12);
  config.mesh.data = 6;
  EXPECT_EQ(make_plan(config, {}).mesh.data, 6);
  EXPECT_THROW(make_plan(config, {.world_size = 4}), util::Error);
}

TEST(Plan, RefusesMachinesThatCannotBe) {
  for (const PlanOptions& machines :
       {PlanOptions{.memory_gib = 0}, PlanOptions{.bandwidth_gbps = -1}, PlanOptions{.flops_tflops = NAN},
        PlanOptions{.world_size = -2}, PlanOptions{.world_size = int64_t{1} << 40}}) {
    EXPECT_THROW(make_plan(small_config(), machines), util::Error);
  }
}

TEST(Plan, IsTheSameAsJson) {
  const Plan plan = make_plan(small_config(), {.world_size = 4});
  auto json = nlohmann::json::parse(plan_json(plan));
  EXPECT_EQ(json["parameters"], plan.parameters);
  EXPECT_EQ(json["memory"]["peak_bytes"], plan.memory.peak);
  EXPECT_EQ(json["communication"]["reduce_scatters"], plan.step.traffic.reduce_scatters);
  int64_t payload = 0, units = 0;
  for (const auto& group : json["units"]) {
    payload += group["communication"]["payload_bytes"].get<int64_t>();
    units += group["units"].get<int64_t>();
  }
  EXPECT_EQ(payload, json["communication"]["payload_bytes"]);
  EXPECT_EQ(units, static_cast<int64_t>(plan.units.size()));
}

TEST(DryRun, PrintsPlanAndMeasurementSideBySide) {
  const config::Config config = small_config();
  const Plan plan = make_plan(config, {.world_size = 64});
  const DryRun measured = dry_run(config, 64);
  const std::string text = dry_run_text(plan, measured);
  int equal = 0;
  for (size_t at = text.find("  equal\n"); at != std::string::npos; at = text.find("  equal\n", at + 1))
    ++equal;
  EXPECT_GE(equal, 10) << text;
  auto json = nlohmann::json::parse(dry_run_json(plan, measured));
  EXPECT_EQ(json["measured"]["shard_bytes"], json["memory"]["shard_bytes"]);
}

TEST(DecimalBytes, SpeakOfCommunicationAsTheNotesDo) {
  EXPECT_EQ(decimal_bytes(96), "96 B");
  EXPECT_EQ(decimal_bytes(8'208), "8.21 kB");
  EXPECT_EQ(decimal_bytes(800'016'000), "0.80 GB");
  EXPECT_EQ(decimal_bytes(24'000'480'000), "24.00 GB");
}

}  // namespace
}  // namespace fsdp::train
