#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp::shard {

struct ShardOptions {
  /// "full_shard" (ZeRO-3), "shard_grad_op" (ZeRO-2: parameters stay gathered from forward to backward) or
  /// "no_shard" (every rank holds everything; gradients are all-reduced, as DDP does).
  std::string strategy = "full_shard";
  std::string layout = "flat";
  /// Auto-wrap threshold: a stage with at least this many parameters that no unit inside it holds becomes a
  /// unit.
  int64_t min_num_params = 100'000;
  /// Stage types (Stage::type_name()) that are never split from the stage around them.
  std::vector<std::string> exclude_stages = {"attention"};
  /// Free a unit's parameters after its forward and gather them again in backward. Off: one gather a step,
  /// more memory.
  bool reshard_after_forward = true;
  std::string forward_prefetch = "implicit";
  std::string backward_prefetch = "pre";
  bool limit_all_gathers = true;
  bool cpu_offload = false;
  bool move_grads_to_cpu = false;
};

}  // namespace fsdp::shard
