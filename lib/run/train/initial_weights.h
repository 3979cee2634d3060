#pragma once

// The initial values of a run's parameters, read part by part into a model that was built on the meta device:
// no process holds more than its shards and one parameter, whatever the size of the model.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "comm/api/communicator.h"
#include "model/families/options.h"
#include "shard/engine/parameter_source.h"
#include "state/weights/weights.h"

namespace fsdp::train {

/// Random values, which depend on seed and name (model/nn/initialize.h) and not on the number of ranks. To read
/// columns of a parameter, the whole parameter is made for a moment.
std::unique_ptr<shard::ParameterSource> random_weights(const nn::ModelOptions& options, uint64_t seed);

/// Stored weights, read as requested, under any of the names in use (state/weights/stored_model.h). Throws
/// Error(kCheckpoint), before anything is read, that lists every parameter of the model that is missing or
/// has another shape or kind of type, and every tensor that nothing uses and options.init_unused does not
/// allow.
std::unique_ptr<shard::ParameterSource> stored_weights(const nn::ModelOptions& options,
                                                       checkpoint::Weights weights);

/// Rank 0 reads whole parameters from `source`, which may be null on other ranks, and broadcasts them: for
/// file systems on which many readers are slower than the network. Each rank holds one whole parameter at a
/// time. Collective; an error of `source` is thrown on every rank as comm::AgreedError.
std::unique_ptr<shard::ParameterSource> broadcast_weights(std::unique_ptr<shard::ParameterSource> source,
                                                          std::shared_ptr<comm::Communicator> communicator);

/// `base`, and the adapters of the model (model/nn/lora.h): those of options.init_from, or PEFT's first values, which depend on
/// seed and name, DoRA's magnitudes being norms of rows of the weights in `base`. Quantizes the weights of layers
/// that are (quantize_frozen()). Collective if `base` is. Throws
/// Error(kCheckpoint) for stored adapters that do not fit.
std::unique_ptr<shard::ParameterSource> with_adapters(std::unique_ptr<shard::ParameterSource> base,
                                                      const torch::nn::Module& model,
                                                      const nn::LoraOptions& options, uint64_t seed);

/// Random weights or those of options.init_from, by broadcast or not, as the options say. Collective, with
/// the same options on all ranks; throws comm::AgreedError of kind kCheckpoint for weights that do not fit
/// the model, whose description names another model, or that cannot be opened. `model` is the module of the options,
/// which may be on meta; a plug-in's must use every stored tensor as well.
std::unique_ptr<shard::ParameterSource> initial_weights(const nn::ModelOptions& options, uint64_t seed,
                                                        std::shared_ptr<comm::Communicator> communicator,
                                                        const torch::nn::Module& model);

}  // namespace fsdp::train
