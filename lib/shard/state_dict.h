#pragma once

// State dicts in memory: the model's fp32 master weights under the names of the unsharded model's parameters.
//
//   full     every parameter as a whole tensor: fits any world size, wrapping and strategy
//   sharded  this rank's range of every parameter: fits any of them too, where the ranges that a rank is
//            given cover its own
//   local    this rank's flat shard of every unit: fits the same model, wrapping and world size only
//
// Buffers are whole on every rank and stay with the module; optimizer state is the checkpoint's
// (checkpoint/save.h).
//
// A tied parameter is in a full state dict under each of its names, all with one tensor, as torch's
// state_dict() has it, and in a sharded one under the first. Loading needs one of them; of several, and of
// entries for the same elements, the last counts.
//
// Every function but local_state_dict() and sharded_state_dict() throws Error(kUsage) when the engine is in
// use (Engine::require_rest()).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shard/engine.h"
#include "shard/tensor_slice.h"

namespace fsdp::shard {

/// An entry of a state dict.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Whole tensors, by parameter.
using FullStateDict = std::vector<NamedTensor>;
/// This rank's ranges, by parameter.
using ShardedStateDict = std::vector<TensorSlice>;
/// This rank's flat shards, by unit: [shard_numel].
using LocalStateDict = std::vector<NamedTensor>;

/// Which ranks get the whole tensors, and where.
struct FullStateDictOptions {
  bool rank0_only = false;  ///< the other ranks take part in the gathers and get an empty state dict
  bool to_host = false;     ///< the tensors lie in host memory
};

/// Every parameter whole, fp32, unit by unit, in memory of its own. Collective. Beside the result at most one
/// unit is in memory.
FullStateDict full_state_dict(Engine& engine, const FullStateDictOptions& options = {});

/// This rank's ranges as views of its shards; parameters of which it has nothing are there with an empty one.
/// Not collective. clone() the data to keep it over the next step.
ShardedStateDict sharded_state_dict(const Engine& engine);

/// This rank's shards themselves, in the order of the units. Not collective. clone() them to keep them over
/// the next step.
LocalStateDict local_state_dict(const Engine& engine);

/// Takes this rank's ranges out of whole tensors of any floating type. Not collective; all ranks pass the
/// same values. Throws Error(kCheckpoint) that names everything that is missing, unexpected or misshapen,
/// before anything is written. Not `strict`: what is missing keeps its values, what is unexpected is ignored.
void load_full_state_dict(Engine& engine, const FullStateDict& state, bool strict = true);

/// The same from ranges, of which a parameter may have several: those of all ranks of another run, for
/// instance. Missing is a parameter of which they do not cover this rank's own range. Not collective; ranks
/// may fail apart from each other, see comm::agree().
void load_sharded_state_dict(Engine& engine, const ShardedStateDict& state, bool strict = true);

/// Takes what local_state_dict() gave on the same rank. Not collective. Throws Error(kCheckpoint) that names
/// the unit unless there is one shard of the right size for each unit.
void load_local_state_dict(Engine& engine, const LocalStateDict& state);

}  // namespace fsdp::shard
