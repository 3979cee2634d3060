#pragma once

// What the codes of a rank's gradients have lacked so far (ShardOptions::error_feedback), as state of a
// checkpoint. Each rank has errors of its own, which fit only the mesh and the units that made them.

#include <vector>

#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::checkpoint {

/// The slices "error_feedback/<unit>/reduce_scatter" and so on of this rank: views of the live tensors, each
/// row `rank` of a tensor [world, n]. Empty without error feedback. Requires: no reduction under way. Not
/// collective.
std::vector<shard::TensorSlice> error_slices(const shard::Engine& engine);

}  // namespace fsdp::checkpoint
