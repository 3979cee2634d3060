#pragma once

// State dicts in memory: the weights of the model in the type of its shards (fp32, unless fsdp.param_storage
// says otherwise), under the names of the unsharded model's parameters.
//
//   full     every parameter as a whole tensor: fits any world size, wrapping and strategy
//   sharded  this rank's range of every parameter: fits any of them if the loaded ranges cover the rank's own
//   local    this rank's flat shard of every unit: fits only the same model, wrapping and world size
//
// Buffers (Engine::buffers()) are whole on every rank, in their own types, and part of all three: each rank
// gives and takes its own. Buffers that modules compute from their options are left out (model/nn/buffers.h).
// state/optim/optimizer_state.h has the state of optimizers.
//
// A full state dict has a tied parameter under each of its names with one tensor, like torch's state_dict().
// A sharded one has it under the first name. Loading needs one of the names. If several entries have the same
// elements, the last one is used.
//
// All functions except local_state_dict() and sharded_state_dict() throw Error(kUsage) when the engine is in
// use (Engine::require_rest()).

#include <ATen/core/Tensor.h>

#include <vector>

#include "shard/engine/engine.h"
#include "shard/engine/tensor_slice.h"

namespace fsdp::shard {

/// Whole tensors, one for each name of a parameter or buffer.
using FullStateDict = std::vector<NamedTensor>;
/// This rank's ranges of each parameter, and whole buffers.
using ShardedStateDict = std::vector<TensorSlice>;
/// This rank's flat shard [shard_numel] of each unit, and whole buffers.
using LocalStateDict = std::vector<NamedTensor>;

/// The ranks on which full_state_dict() returns parameters, and the memory that they are in.
struct FullStateDictOptions {
  bool rank0_only = false;  ///< other ranks take part in the gathers and return an empty state dict
  bool to_host = false;     ///< whether the tensors are in host memory
};

/// Returns every parameter whole, in the type of its shards, in separate memory, unit by unit, and this
/// rank's buffers. Warns of buffers that differ between ranks. Holds at most one unit in addition.
/// Collective.
FullStateDict full_state_dict(Engine& engine, const FullStateDictOptions& options = {});

/// Returns this rank's ranges, which may be empty, as views of its shards and buffers. clone() keeps the data
/// beyond the next step. Not collective.
ShardedStateDict sharded_state_dict(const Engine& engine);

/// Returns this rank's shards and buffers themselves, in the order of the units. clone() keeps them beyond
/// the next step. Not collective.
LocalStateDict local_state_dict(const Engine& engine);

/// Copies this rank's ranges from whole tensors of any floating type, and buffers. Before writing anything,
/// throws Error(kCheckpoint) that lists all missing, unexpected and misshapen tensors. Without `strict`,
/// missing parameters keep their values and unexpected ones are ignored. Requires: the same values on all
/// ranks. Not collective.
void load_full_state_dict(Engine& engine, const FullStateDict& state, bool strict = true);

/// Loads from ranges, such as those of all ranks of another run. A parameter may have several, and is missing
/// if they do not cover this rank's range of it. Not collective; may throw on some ranks only, see
/// comm::agree().
void load_sharded_state_dict(Engine& engine, const ShardedStateDict& state, bool strict = true);

/// Loads the result of local_state_dict() of the same rank. Throws Error(kCheckpoint) that names the unit
/// unless each unit has one shard of the right size. Not collective.
void load_local_state_dict(Engine& engine, const LocalStateDict& state);

}  // namespace fsdp::shard
