#pragma once

// What a checkpoint holds of the training state on this rank: views, so that saving copies nothing and
// loading fills the live tensors.

#include <vector>

#include "checkpoint/tensor_slice.h"
#include "optim/optimizer.h"
#include "shard/engine.h"

namespace fsdp::train {

/// The optimizer's view of the engine's shards: one flat parameter a unit; frozen parameters and padding are
/// not updated, and parameters whose name matches one of `no_decay` do not decay.
std::vector<optim::FlatParameter> flat_parameters(const shard::Engine& engine,
                                                  const std::vector<std::string>& no_decay);

enum class SlicePurpose {
  kSave,  ///< of ranks that hold the same, each gives a part of it; together they give it once
  kLoad,  ///< every rank wants all that it holds
};

/// "model/<name>" of every parameter and "optimizer/<state>/<name>" of every trainable one.
/// The optimizer must have been made from flat_parameters() of the same engine.
std::vector<checkpoint::TensorSlice> state_slices(const shard::Engine& engine,
                                                  const optim::Optimizer& optimizer, SlicePurpose purpose);

}  // namespace fsdp::train
