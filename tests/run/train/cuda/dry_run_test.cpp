// A rank of a world that is not there, on a GPU.

#include "run/train/dry_run.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/device/cuda.h"
#include "run/train/device.h"

namespace fsdp::train {
namespace {

config::Config some_config() {
  config::Config config;
  config.model.vocab_size = 512;
  config.model.hidden_size = 256;
  config.model.intermediate_size = 688;
  config.model.num_attention_heads = config.model.num_key_value_heads = 4;
  config.model.num_hidden_layers = 4;
  config.model.max_position_embeddings = 128;
  config.data.train = {"none.bin"};
  config.data.sequence_length = 128;
  config.data.micro_batch_size = 2;
  config.fsdp.min_num_params = 100'000;
  config.mixed_precision.param_dtype = "bfloat16";
  return config;
}

/// What is counted without looking at the device is what it is on the CPU.
void expect_equal_counts(const DryRun& on_gpu, const DryRun& on_cpu) {
  EXPECT_EQ(on_gpu.shards, on_cpu.shards);
  EXPECT_EQ(on_gpu.optimizer, on_cpu.optimizer);
  EXPECT_EQ(on_gpu.gradients, on_cpu.gradients);
  EXPECT_EQ(on_gpu.traffic, on_cpu.traffic);
}

TEST(DryRunOnAGpu, CountsAsOnTheCpuAndMeasuresTheGpusMemory) {
  const at::Device gpu = training_device("cuda", 0);
  const config::Config config = some_config();
  const DryRun measured = dry_run(config, 8, gpu);
  expect_equal_counts(measured, dry_run(config, 8));
  EXPECT_EQ(measured.gpu, util::cuda_device(0).name);
  EXPECT_GE(measured.peak, measured.shards + measured.optimizer + measured.gradients);
  EXPECT_GE(measured.gpu_reserved, measured.peak);
  EXPECT_LT(measured.gpu_reserved, measured.gpu_memory);
  const plan::Plan plan = plan::make_plan(config, {.world_size = 8});
  auto json = nlohmann::json::parse(dry_run_json(plan, measured));
  EXPECT_EQ(json["measured"]["gpu"], measured.gpu);
}

TEST(DryRunOnAGpu, LeavesInHostMemoryWhatIsOffloaded) {
  const at::Device gpu = training_device("cuda", 0);
  config::Config config = some_config();
  config.fsdp.cpu_offload = config.fsdp.move_grads_to_cpu = true;
  const DryRun measured = dry_run(config, 1, gpu);
  expect_equal_counts(measured, dry_run(config, 1));
  config.fsdp.cpu_offload = config.fsdp.move_grads_to_cpu = false;
  EXPECT_LT(measured.peak + measured.optimizer, dry_run(config, 1, gpu).peak);
}

}  // namespace
}  // namespace fsdp::train
