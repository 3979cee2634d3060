// The engine on a device whose streams run beside its host (support/fake_device.h): the same numbers as on
// the CPU, and nothing out of order.

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "support/fake_collectives.h"
#include "support/sharded_run.h"

namespace fsdp::testing {
namespace {

/// Every stage with parameters is a unit of its own.
RunPlan nested_plan() {
  RunPlan plan;
  plan.model.fused_kernels = false;
  plan.shard.min_num_params = 1;
  plan.global_rows = 8;
  plan.steps = 3;
  plan.max_norm = 1;
  return plan;
}

struct Way {
  std::string name;
  std::function<void(RunPlan&)> change;
  int world_size = 2;
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

std::vector<Way> ways() {
  return {
      {"full_shard", [](RunPlan&) {}},
      {"OneUnit", [](RunPlan& plan) { plan.shard.min_num_params = 1'000'000; }},
      {"AloneInItsWorld", [](RunPlan&) {}, 1},
      {"NoPrefetch",
       [](RunPlan& plan) { plan.shard.forward_prefetch = plan.shard.backward_prefetch = "none"; }},
      {"PostPrefetch", [](RunPlan& plan) { plan.shard.backward_prefetch = "post"; }},
      {"NoLimit", [](RunPlan& plan) { plan.shard.limit_all_gathers = false; }},
      {"ReshardsEverything",
       [](RunPlan& plan) {
         plan.shard.reshard_root_after_forward = plan.shard.reshard_last_after_forward = true;
       }},
      {"KeepsAfterForward", [](RunPlan& plan) { plan.shard.reshard_after_forward = false; }},
      {"shard_grad_op", [](RunPlan& plan) { plan.shard.strategy = "shard_grad_op"; }},
      {"no_shard", [](RunPlan& plan) { plan.shard.strategy = "no_shard"; }},
      {"Hybrid",
       [](RunPlan& plan) {
         plan.shard.strategy = "hybrid_shard";
         plan.mesh = {.dcn = 2, .data = 2};
       },
       4},
      {"Accumulation", [](RunPlan& plan) { plan.accumulation = 2; }},
      {"AccumulationWithoutSync",
       [](RunPlan& plan) {
         plan.accumulation = 2;
         plan.no_sync = true;
       }},
      {"Bf16",
       [](RunPlan& plan) {
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
       }},
      {"LowPrecisionGradients",
       [](RunPlan& plan) {
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_grads = true;
       }},
      {"Recompute", [](RunPlan& plan) { plan.recompute = {"block"}; }},
      {"Offload", [](RunPlan& plan) { plan.shard.cpu_offload = true; }},
      {"OffloadWithGradients",
       [](RunPlan& plan) { plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true; }},
      {"OffloadAndAccumulation",
       [](RunPlan& plan) {
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.accumulation = 2;
       }},
      {"OffloadBf16",
       [](RunPlan& plan) {
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
       }},
      {"OffloadAlone", [](RunPlan& plan) { plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true; },
       1},
      {"OffloadHybrid",
       [](RunPlan& plan) {
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.shard.strategy = "hybrid_shard";
         plan.mesh = {.dcn = 2, .data = 2};
       },
       4},
      {"PerParameter",
       [](RunPlan& plan) {
         plan.shard.layout = "per_parameter";
         plan.shard.shard_1d_parameters = true;
       }},
      {"AdamW",
       [](RunPlan& plan) {
         plan.optimizer.emplace();
         plan.optimizer->name = "adamw";
         plan.optimizer->fused = false;
         plan.learning_rate = 0.01;
       }},
  };
}

class OnADevice : public ::testing::TestWithParam<Way> {
 protected:
  RunPlan plan() const {
    RunPlan plan = nested_plan();
    GetParam().change(plan);
    return plan;
  }
};

TEST_P(OnADevice, TrainsAsOnTheCpuWithNothingOutOfOrder) {
  RunPlan plan = this->plan();
  const RunResult expected = train_sharded(GetParam().world_size, plan);
  plan.interpose = on_fake_device;
  FakeDevice::get().begin();
  const RunResult actual = train_sharded(GetParam().world_size, plan);
  EXPECT_EQ(FakeDevice::get().report(), "");
  if (plan.shard.mixed_precision.param_dtype == "float32") {
    expect_close_runs(actual, expected, GetParam().name);
  } else {
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(actual.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
    }
  }
}

TEST_P(OnADevice, TrainsThroughHostMemoryToo) {
  RunPlan plan = this->plan();
  plan.steps = 2;
  const RunResult expected = train_sharded(GetParam().world_size, plan);
  plan.interpose = staged_on_fake_device;
  FakeDevice::get().begin();
  const RunResult actual = train_sharded(GetParam().world_size, plan);
  EXPECT_EQ(FakeDevice::get().report(), "");
  EXPECT_NEAR(actual.losses.back(), expected.losses.back(), 2e-2 * expected.losses.back());
}

INSTANTIATE_TEST_SUITE_P(Ways, OnADevice, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
