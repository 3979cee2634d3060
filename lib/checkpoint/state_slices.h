#pragma once

// What a checkpoint holds of the training state on this rank: views, so that saving copies nothing and
// loading fills the live tensors.

#include <vector>

#include "optim/optimizer.h"
#include "shard/engine.h"
#include "shard/tensor_slice.h"

namespace fsdp::checkpoint {

/// What the slices are for.
enum class SlicePurpose {
  kSave,  ///< of ranks that hold the same, each gives a part of it; together they give it once
  kLoad,  ///< every rank wants all that it holds
};

/// "model/<name>" of every parameter and "optimizer/<state>/<name>" of every trainable one that has the
/// state. The optimizer must have been made from optim::flat_parameters() of the same engine.
std::vector<shard::TensorSlice> state_slices(const shard::Engine& engine, const optim::Optimizer& optimizer,
                                             SlicePurpose purpose);

}  // namespace fsdp::checkpoint
