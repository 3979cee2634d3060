#pragma once

// BegunStep: a rank's part of a step that was broken off, with training.reproducible = "world_size". The
// gradients and losses of the step's first samples do not depend on the ranks that computed them, so other
// ranks can go on from there.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shard/engine/reduce/sample_tree.h"

namespace fsdp::train {

/// Copies share their memory, to which nobody writes.
struct BegunStep {
  int64_t leaves = 0;  ///< micro-batches that are done, over all ranks
  int64_t all = 0;     ///< micro-batches of the step, over all ranks
  /// Sums of each unit after some numbers of leaves, ascending.
  std::vector<std::vector<shard::SampleSums>> units;
  at::Tensor losses;  ///< losses of all samples, double; those after `leaves` are unknown

  bool has(int64_t some_leaves) const {
    return some_leaves <= leaves && std::ranges::all_of(units, [&](const auto& unit) {
             return std::ranges::count(unit, some_leaves, &shard::SampleSums::leaves) > 0;
           });
  }
  /// Returns the sums of each unit after `leaves`. Requires: has(leaves).
  std::vector<shard::SampleSums> sums() const {
    std::vector<shard::SampleSums> found;
    for (const auto& unit : units)
      found.push_back(*std::ranges::find(unit, leaves, &shard::SampleSums::leaves));
    return found;
  }
};

}  // namespace fsdp::train
