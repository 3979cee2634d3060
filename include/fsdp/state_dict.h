#pragma once

/// \file
/// State dicts in memory: full (whole tensors), sharded (this rank's ranges) and local (this rank's flat
/// shards). They hold the weights as the shards do, under the names of the unsharded model.
///
/// Collective: full_state_dict(). Loading is not, since each rank copies its own part.
///
/// Errors: Error(kCheckpoint) that names missing, unexpected and misshapen parameters, before any is written;
/// Error(kUsage) while the engine is in use.
///
/// Lifetime: full state dicts are copies; the others are views of the shards, valid until the next step.
///
/// \code{.cpp}
/// void copy_weights(fsdp::Engine& from, fsdp::Engine& to) {      // of any strategies, on the same ranks
///   fsdp::load_full_state_dict(to, fsdp::full_state_dict(from));
/// }
/// \endcode

#include "shard/state/state_dict.h"

namespace fsdp {

using shard::full_state_dict;
using shard::FullStateDict;
using shard::FullStateDictOptions;
using shard::load_full_state_dict;
using shard::load_local_state_dict;
using shard::load_sharded_state_dict;
using shard::local_state_dict;
using shard::LocalStateDict;
using shard::NamedTensor;
using shard::sharded_state_dict;
using shard::ShardedStateDict;

}  // namespace fsdp
