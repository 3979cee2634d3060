#pragma once

#include "support/chain_run.h"

namespace fsdp::shard {

inline constexpr const char* kHybrids[] = {"hybrid_shard", "hybrid_shard_zero2"};

inline ShardOptions hybrid_matrices(const char* strategy = "hybrid_shard") {
  ShardOptions options = testing::every_matrix("implicit", "pre");
  options.strategy = strategy;
  return options;
}

}  // namespace fsdp::shard
