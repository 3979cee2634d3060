#pragma once

// Ways of sharding under which what a user sees of the parameters must be the same.

#include <string>
#include <vector>

#include "shard/units/options.h"

namespace fsdp::testing {

struct ShardSetup {
  std::string name;
  shard::ShardOptions options;
};

/// Every stage with parameters is a unit, or all are one; in each strategy, precision and place.
inline std::vector<ShardSetup> shard_setups() {
  shard::ShardOptions nested;
  nested.min_num_params = 1;
  std::vector<ShardSetup> setups;
  auto add = [&](const char* name, const auto& change) {
    setups.push_back({name, nested});
    change(setups.back().options);
  };
  add("nested", [](auto&) {});
  add("one unit", [](auto& options) { options.min_num_params = 1'000'000; });
  add("shard_grad_op", [](auto& options) { options.strategy = "shard_grad_op"; });
  add("no_shard", [](auto& options) { options.strategy = "no_shard"; });
  add("bfloat16", [](auto& options) {
    options.mixed_precision.param_dtype = "bfloat16";
    options.mixed_precision.keep_float32 = {"*bias"};
  });
  add("offload", [](auto& options) { options.cpu_offload = true; });
  add("offload of bfloat16 without shards", [](auto& options) {
    options.strategy = "no_shard";
    options.cpu_offload = true;
    options.mixed_precision.param_dtype = options.mixed_precision.reduce_dtype = "bfloat16";
  });
  add("replicated", [](auto& options) { options.replicated_parameters = {"*bias", "layers.0.*"}; });
  return setups;
}

}  // namespace fsdp::testing
