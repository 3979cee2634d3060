#pragma once

// The values that a run's parameters start with, given out part by part to a model on the meta device: no
// process holds more than its shards and one parameter, whatever the size of the model.

#include <cstdint>
#include <memory>

#include "checkpoint/weights.h"
#include "comm/communicator.h"
#include "nn/options.h"
#include "shard/parameter_source.h"

namespace fsdp::train {

/// Random values of (seed, name) as nn/initialize.h defines them, whatever the number of ranks. A parameter
/// of which a rank wants a part is made whole for a moment.
std::unique_ptr<shard::ParameterSource> random_weights(const nn::ModelOptions& options, uint64_t seed);

/// Stored weights, of which only what is asked for is read, under the names that they are found with in the
/// wild (checkpoint/stored_model.h). Throws Error(kCheckpoint), before anything is read, that lists
/// every parameter of the model that is missing or has another shape or kind of type, and every tensor that
/// nothing uses and options.init_unused does not allow.
std::unique_ptr<shard::ParameterSource> stored_weights(const nn::ModelOptions& options,
                                                       checkpoint::Weights weights);

/// Rank 0 takes each parameter whole from `source`, which may be null on other ranks, and sends it to them:
/// for file systems on which many readers are slower than the network. Each rank holds one whole parameter at
/// a time. Collective; an error of `source` is thrown on every rank as comm::AgreedError.
std::unique_ptr<shard::ParameterSource> broadcast_weights(std::unique_ptr<shard::ParameterSource> source,
                                                          std::shared_ptr<comm::Communicator> communicator);

/// What the options ask for: random weights or those of options.init_from, by broadcast or not. Collective,
/// with the same options on all ranks; throws comm::AgreedError of kind kCheckpoint for weights that do not
/// fit the model, that are of another model by what is written beside them, or that cannot be opened.
std::unique_ptr<shard::ParameterSource> initial_weights(const nn::ModelOptions& options, uint64_t seed,
                                                        std::shared_ptr<comm::Communicator> communicator);

}  // namespace fsdp::train
