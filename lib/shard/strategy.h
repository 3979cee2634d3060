#pragma once

// What the strategies have in common. Needs no libtorch.

#include "shard/options.h"

namespace fsdp::shard {

/// Units are cut within a slice (mesh axis data) and replicated between slices (dcn).
inline bool is_hybrid(util::Named<Strategy> strategy) {
  return strategy == Strategy::kHybridShard || strategy == Strategy::kHybridShardZero2;
}

/// Every rank holds every parameter.
inline bool shards_nothing(util::Named<Strategy> strategy) { return strategy == Strategy::kNoShard; }

/// ZeRO-3: parameters are freed between forward and backward. The others keep them gathered (ZeRO-2).
inline bool reshards(util::Named<Strategy> strategy) {
  return strategy == Strategy::kFullShard || strategy == Strategy::kHybridShard;
}

}  // namespace fsdp::shard
