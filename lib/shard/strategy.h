#pragma once

// What the names of ShardOptions::strategy stand for. Needs no libtorch.

#include <string>

namespace fsdp::shard {

inline constexpr const char* kNoShard = "no_shard";

/// Units are cut within a slice (mesh axis data) and replicated between slices (dcn).
inline bool is_hybrid(const std::string& strategy) {
  return strategy == "hybrid_shard" || strategy == "hybrid_shard_zero2";
}

/// Every rank holds every parameter.
inline bool shards_nothing(const std::string& strategy) { return strategy == kNoShard; }

/// ZeRO-3: parameters are freed between forward and backward. The others keep them gathered (ZeRO-2).
inline bool reshards(const std::string& strategy) {
  return strategy == "full_shard" || strategy == "hybrid_shard";
}

}  // namespace fsdp::shard
