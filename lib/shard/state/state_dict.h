#pragma once

// State dicts in memory: the weights of the model, as its shards keep them (in fp32, unless fsdp.param_storage
// says otherwise), under the names of the unsharded model's parameters.
//
//   full     every parameter as a whole tensor: fits any world size, wrapping and strategy
//   sharded  this rank's range of every parameter: fits any of them if the loaded ranges cover the rank's own
//   local    this rank's flat shard of every unit: fits only the same model, wrapping and world size
//
// Buffers (Engine::buffers()) are whole on every rank, in their own types, and part of all three: each rank
// gives and takes its own. What modules compute from their options is left out (model/nn/buffers.h). For the state of
// optimizers see state/optim/optimizer_state.h.
//
// A full state dict has a tied parameter under each of its names with one tensor, as torch's state_dict() has
// it, a sharded one under the first. Loading needs one of the names; of several entries for the same elements
// the last wins.
//
// All functions except local_state_dict() and sharded_state_dict() throw Error(kUsage) when the engine is in
// use (Engine::require_rest()).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {

/// Whole tensors, by parameter and buffer.
using FullStateDict = std::vector<NamedTensor>;
/// This rank's ranges, by parameter; buffers whole.
using ShardedStateDict = std::vector<TensorSlice>;
/// This rank's flat shards, by unit: [shard_numel]; buffers by name.
using LocalStateDict = std::vector<NamedTensor>;

/// Which ranks full_state_dict() returns parameters on, and in which memory.
struct FullStateDictOptions {
  bool rank0_only = false;  ///< other ranks take part in the gathers and return an empty state dict
  bool to_host = false;     ///< the tensors lie in host memory
};

/// Every parameter whole, in the type of its shards, in separate memory, unit by unit, and this rank's buffers,
/// with a warning that names those that differ between ranks. Beside these at most one unit is held. Collective.
FullStateDict full_state_dict(Engine& engine, const FullStateDictOptions& options = {});

/// This rank's ranges, possibly empty, as views of its shards and buffers: clone() the data to keep it beyond the next
/// step. Not collective.
ShardedStateDict sharded_state_dict(const Engine& engine);

/// This rank's shards and buffers, not copies, in the order of the units: clone() them to keep them beyond the next step.
/// Not collective.
LocalStateDict local_state_dict(const Engine& engine);

/// Copies this rank's ranges from whole tensors of any floating type, and buffers. Not collective; all ranks must pass the
/// same values. Before writing anything, throws Error(kCheckpoint) that lists all missing, unexpected and
/// misshapen tensors. Without `strict`, missing parameters keep their values and unexpected ones are ignored.
void load_full_state_dict(Engine& engine, const FullStateDict& state, bool strict = true);

/// The same from ranges, of which a parameter may have several, such as those of all ranks of another run. A
/// parameter is missing if they do not cover this rank's range of it. Not collective; it may throw on some
/// ranks only, see comm::agree().
void load_sharded_state_dict(Engine& engine, const ShardedStateDict& state, bool strict = true);

/// Loads the result of local_state_dict() of the same rank. Not collective. Throws Error(kCheckpoint) that
/// names the unit unless there is one shard of the right size for each unit.
void load_local_state_dict(Engine& engine, const LocalStateDict& state);

}  // namespace fsdp::shard
