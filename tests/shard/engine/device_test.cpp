// The engine on a device whose streams run beside its host (support/fake_device.h): the same numbers as on
// the CPU, and no races.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "comm/fake/fake_communicator.h"
#include "support/fake_collectives.h"
#include "support/sharded_run.h"

namespace fsdp::testing {
namespace {

/// Every stage with parameters becomes a unit.
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

void stream(RunPlan& plan, const std::string& name) {
  plan.optimizer.emplace();
  plan.optimizer->name = name;
  plan.optimizer->fused = false;
  plan.optimizer->offload = optim::OptimizerOffload::kStream;
  plan.learning_rate = 0.01;
}

std::vector<Way> ways() {
  return {
      {"full_shard", [](RunPlan&) {}},
      {"OneUnit", [](RunPlan& plan) { plan.shard.min_num_params = 1'000'000; }},
      {"AloneInItsWorld", [](RunPlan&) {}, 1},
      {"NoPrefetch",
       [](RunPlan& plan) {
         plan.shard.forward_prefetch = "none";
         plan.shard.backward_prefetch = "none";
       }},
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
      {"LowPrecisionShards",
       [](RunPlan& plan) {
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_shards = true;
         plan.accumulation = 2;
       }},
      {"LowPrecisionShardsAlone",
       [](RunPlan& plan) {
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_shards = true;
       },
       1},
      {"OffloadLowPrecisionShards",
       [](RunPlan& plan) {
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.shard.mixed_precision.param_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_shards = true;
       }},
      {"no_shardBf16",
       [](RunPlan& plan) {
         plan.shard.strategy = "no_shard";
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
       }},
      {"LowPrecisionGradients",
       [](RunPlan& plan) {
         plan.shard.mixed_precision.param_dtype = plan.shard.mixed_precision.reduce_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_grads = true;
       }},
      {"Recompute", [](RunPlan& plan) { plan.recompute = {"block"}; }},
      {"ActivationsInHostMemory",
       [](RunPlan& plan) {
         plan.recompute = {"block"};
         plan.offload = true;
         plan.accumulation = 2;
       }},
      {"ActivationsAndShardsInHostMemory",
       [](RunPlan& plan) {
         plan.recompute = {"block"};
         plan.offload = plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.shard.mixed_precision.param_dtype = "bfloat16";
       }},
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
      {"GlobalOptimizer",
       [](RunPlan& plan) {
         plan.shard.strategy = "hybrid_shard";
         plan.shard.hybrid_optimizer = "global";
         plan.shard.reduce_scatter_group = true;
         plan.shard.mixed_precision.param_dtype = "bfloat16";
         plan.mesh = {.dcn = 2, .data = 2};
         plan.accumulation = 2;
       },
       4},
      {"GlobalOptimizerOffload",
       [](RunPlan& plan) {
         plan.shard.strategy = "hybrid_shard";
         plan.shard.hybrid_optimizer = "global";
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.mesh = {.dcn = 2, .data = 2};
       },
       4},
      {"GlobalOptimizerOfWholeModels",
       [](RunPlan& plan) {
         plan.shard.strategy = "hybrid_shard";
         plan.shard.hybrid_optimizer = "global";
         plan.mesh = {.dcn = 2, .data = 1};
       },
       2},
      {"GlobalOptimizerPerParameter",
       [](RunPlan& plan) {
         plan.shard.strategy = "hybrid_shard";
         plan.shard.hybrid_optimizer = "global";
         plan.shard.layout = "per_parameter";
         plan.mesh = {.dcn = 2, .data = 1};
       },
       2},
      {"ReduceScatterGroup", [](RunPlan& plan) { plan.shard.reduce_scatter_group = true; }},
      {"HybridReduceScatterGroup",
       [](RunPlan& plan) {
         plan.shard.reduce_scatter_group = true;
         plan.shard.strategy = "hybrid_shard";
         plan.mesh = {.dcn = 2, .data = 2};
       },
       4},
      {"OffloadReduceScatterGroup",
       [](RunPlan& plan) {
         plan.shard.reduce_scatter_group = true;
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
       }},
      {"WrappedUnits",
       [](RunPlan& plan) {
         plan.mesh = {.dcn = 2, .data = 2};
         plan.wrapped = {
             {"model.layers.0", {.strategy = "hybrid_shard", .cpu_offload = true}},
             {"model.layers.1", {.strategy = "no_shard", .cpu_offload = true, .move_grads_to_cpu = true}},
             {"model.layers.2", {.reshard_after_forward = false}}};
       },
       4},
      {"WrappedUnitsInTwoTypes",
       [](RunPlan& plan) {
         plan.shard.strategy = "no_shard";
         plan.shard.mixed_precision.param_dtype = "bfloat16";
         plan.wrapped = {{"model.layers.0", {.strategy = "full_shard", .param_dtype = "float32"}},
                         {"model.layers.1", {.cpu_offload = true}}};
       }},
      {"PerParameter",
       [](RunPlan& plan) {
         plan.shard.layout = "per_parameter";
         plan.shard.shard_1d_parameters = true;
       }},
      {"Spmd",
       [](RunPlan& plan) {
         plan.spmd = true;
         plan.recompute = {"block"};
         plan.shard.strategy = "hybrid_shard";
         plan.mesh = {.dcn = 2, .data = 2};
       },
       4},
      {"AdamW",
       [](RunPlan& plan) {
         plan.optimizer.emplace();
         plan.optimizer->name = "adamw";
         plan.optimizer->fused = false;
         plan.learning_rate = 0.01;
       }},
      {"AdamWOnShardsInBf16",
       [](RunPlan& plan) {
         plan.optimizer.emplace();
         plan.optimizer->fused = false;
         plan.learning_rate = 0.01;
         plan.shard.param_storage = plan.shard.mixed_precision.param_dtype = "bfloat16";
       }},
      {"StatesInHostMemory", [](RunPlan& plan) { stream(plan, "adamw"); }},
      {"StatesInHostMemoryInBf16",
       [](RunPlan& plan) {
         stream(plan, "lion");
         plan.optimizer->state_dtype = optim::StateType::kBFloat16;
         plan.shard.mixed_precision.param_dtype = "bfloat16";
       }},
      {"StatesAndShardsInHostMemory",
       [](RunPlan& plan) {
         stream(plan, "adamw");
         plan.shard.cpu_offload = true;
         plan.shard.mixed_precision.param_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_low_precision_shards = true;
       }},
      {"EverythingInHostMemory",
       [](RunPlan& plan) {
         stream(plan, "adam");
         plan.optimizer->ema_decay = 0.9;
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
       }},
      {"StatesAndShardsOf16BitsInHostMemory",
       [](RunPlan& plan) {
         stream(plan, "adamw");
         plan.shard.cpu_offload = true;
         plan.shard.param_storage = plan.shard.mixed_precision.param_dtype = "bfloat16";
       }},
      {"OffloadOfShardsInBf16",
       [](RunPlan& plan) {
         plan.optimizer.emplace();
         plan.learning_rate = 0.01;
         plan.shard.cpu_offload = plan.shard.move_grads_to_cpu = true;
         plan.shard.param_storage = plan.shard.mixed_precision.param_dtype = "bfloat16";
         plan.shard.mixed_precision.keep_float32 = {"*norm*"};
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
  // The formula assumes that stages that are recomputed contain no units.
  if (plan.recompute.empty()) {
    EXPECT_LE(actual.peak_bytes, actual.bound_bytes);
  }
  if (plan.shard.mixed_precision.param_dtype == "float32") {
    expect_close_runs(actual, expected, GetParam().name);
  } else {
    for (size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(actual.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
    }
  }
}

TEST(OnADeviceMemory, AGatherDoesNotWaitForTheMemoryOfAReduction) {
  if (!testing::flat_is_under_test()) GTEST_SKIP() << "buffers are alike in the flat layout only";
  const auto buffers_of = [](bool on_device) {
    RunPlan plan = nested_plan();
    plan.shard.min_num_params = 400;
    if (on_device) plan.interpose = on_fake_device;
    FakeDevice::get().begin();
    return train_sharded(2, plan);
  };
  const RunResult on_cpu = buffers_of(false), on_device = buffers_of(true);
  EXPECT_LE(on_cpu.peak_bytes, on_cpu.bound_bytes);
  EXPECT_LE(on_device.peak_bytes, on_device.bound_bytes);
  EXPECT_GT(on_device.peak_bytes, on_cpu.bound_bytes) << "what the CPU never needs";
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

/// How often the host waits for the device in forward and backward of a loss made by `loss_of`.
size_t host_waits_of(const std::function<at::Tensor()>& loss_of) {
  FakeDevice::get().begin();
  loss_of().backward();
  const std::vector<Entry> log = FakeDevice::get().log();
  return static_cast<size_t>(std::count_if(log.begin(), log.end(), [](const Entry& entry) {
    return entry.kind == Entry::Kind::kWait && entry.stream == kHost;
  }));
}

TEST(LossOnADevice, OfComposedOperatorsIsTheCpusAndDoesNotMakeTheHostWait) {
  const at::Device device = FakeDevice::get().device();
  const at::Tensor scores = (at::arange(40, at::kFloat) * 0.7).sin().view({2, 4, 5});
  const at::Tensor all = at::arange(8).remainder(5).view({2, 4});
  const at::Tensor none = at::full({2, 4}, -100, at::kLong), some = at::where(all < 3, all, none);
  for (const auto& terms :
       {kernels::LossTerms{}, kernels::LossTerms{.label_smoothing = 0.1, .z_loss = 0.01}}) {
    for (const at::Tensor& targets : {all, some, none}) {
      at::Tensor expected = scores.clone().requires_grad_(), there = scores.to(device).requires_grad_();
      at::Tensor loss = nn::next_token_loss(expected, targets, terms), result;
      loss.backward();
      const at::Tensor targets_there = targets.to(device);
      EXPECT_EQ(host_waits_of([&] { return result = nn::next_token_loss(there, targets_there, terms); }), 0u);
      EXPECT_NEAR(result.item<double>(), loss.item<double>(), 1e-6);
      EXPECT_TRUE(at::allclose(there.grad().cpu(), expected.grad(), 1e-5, 1e-7));
    }
  }
  EXPECT_EQ(FakeDevice::get().report(), "");
}

/// As fsdp-train --dry-run on a GPU: one rank of the world, without the others.
TEST_P(OnADevice, RunsOneRankOfItsWorldAlone) {
  RunPlan plan = this->plan();
  auto fake_on = [&](at::Device device) {
    return [world = GetParam().world_size, device](comm::Communicator&) {
      return comm::make_fake_communicator(world, device);
    };
  };
  plan.interpose = fake_on(at::kCPU);
  const RunResult expected = train_sharded(1, plan);
  plan.interpose = fake_on(FakeDevice::get().device());
  FakeDevice::get().begin();
  const RunResult actual = train_sharded(1, plan);
  EXPECT_EQ(FakeDevice::get().report(), "");
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
  }
}

TEST(OneRankOnADevice, HasItsShardsThereAndNotTheModel) {
  FakeDevice& fake = FakeDevice::get();
  RunPlan plan = nested_plan();
  const size_t before = fake.live_bytes();
  auto model = nn::make_decoder(plan.model, fake.device());
  const size_t whole = fake.live_bytes() - before;
  auto engine =
      shard_under_test(*model, plan.shard, comm::Mesh({}, comm::make_fake_communicator(64, fake.device())));
  EXPECT_EQ(engine->communicator().world_size(), 64);
  const size_t kept = fake.live_bytes() - before;
  EXPECT_GE(kept, static_cast<size_t>(engine->shard_bytes()));
  EXPECT_LT(kept, whole / 2);  // blocks of 512 bytes for shards of some more than 4
  EXPECT_EQ(engine->communicator().allocate(1, at::kFloat).device(), fake.device());
}

INSTANTIATE_TEST_SUITE_P(Ways, OnADevice, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
