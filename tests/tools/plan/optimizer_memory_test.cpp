#include "tools/plan/optimizer_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tools/plan/plan.h"

namespace fsdp::plan {
namespace {

/// A model whose gradients stay in 16 bits.
config::Config with_low_gradients() {
  config::Config config;
  config.model.architecture = "llama";
  config.mixed_precision.param_dtype = "bfloat16";
  config.mixed_precision.reduce_dtype = "bfloat16";
  config.mixed_precision.keep_low_precision_grads = true;
  return config;
}

int64_t temporaries(const config::Config& config) {
  return update_temporaries(config, planned_units(config, {}));
}

TEST(OptimizerMemory, FusedAdamReadsGradientsIn16BitsAsTheyAre) {
  config::Config config = with_low_gradients();
  config.optimizer.name = "adamw";
  EXPECT_EQ(temporaries(config), 0);
  int64_t largest = 0;
  for (const auto& unit : planned_units(config, {})) largest = std::max(largest, unit.shard_numel);
  config.optimizer.fused = false;
  EXPECT_GE(temporaries(config), 4 * largest) << "a copy in fp32";
  config.optimizer.fused = true;
  config.optimizer.name = "lion";
  EXPECT_GE(temporaries(config), 4 * largest);
  config.optimizer.name = "adamw";
  config.fsdp.param_storage = "bfloat16";
  EXPECT_GE(temporaries(config), 4 * largest) << "weights are converted piece by piece, gradients as a whole";
}

}  // namespace
}  // namespace fsdp::plan
