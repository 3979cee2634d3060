#pragma once

// What a rank has of a step that was broken off, with training.reproducible = "world_size": the gradients and losses of the
// step's first samples do not depend on who computed them, so that other ranks can go on from there.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard/engine/reduce/sample_tree.h"

namespace fsdp::train {

/// Copies share their memory, which nobody writes to.
struct BegunStep {
  int64_t leaves = 0;  ///< micro-batches, those of other ranks too, that are done
  int64_t all = 0;     ///< of the step
  /// Of each unit, after some numbers of leaves that ascend.
  std::vector<std::vector<shard::SampleSums>> units;
  at::Tensor losses;  ///< of all samples, double; those of `leaves` are there

  bool has(int64_t some_leaves) const {
    return some_leaves <= leaves && std::ranges::all_of(units, [&](const auto& unit) {
             return std::ranges::count(unit, some_leaves, &shard::SampleSums::leaves) > 0;
           });
  }
  /// Those of each unit after `leaves`, which must be there.
  std::vector<shard::SampleSums> sums() const {
    std::vector<shard::SampleSums> found;
    for (const auto& unit : units)
      found.push_back(*std::ranges::find(unit, leaves, &shard::SampleSums::leaves));
    return found;
  }
};

}  // namespace fsdp::train
