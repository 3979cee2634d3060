#pragma once

// Sources of the initial values of a run's parameters, which are read part by part into a model on the meta
// device. No process holds more than its shards and one parameter, whatever the size of the model.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/util/progress_bar.h"
#include "comm/api/communicator.h"
#include "model/families/options.h"
#include "shard/engine/parameter_source.h"
#include "state/weights/weights.h"

namespace fsdp::train {

/// Returns random values, which depend on seed and name (model/nn/initialize.h) and not on the number of
/// ranks. A read of columns of a parameter makes the whole parameter for a moment.
std::unique_ptr<shard::ParameterSource> random_weights(const nn::ModelOptions& options, uint64_t seed);

/// Returns stored weights, read as requested, under any of the names in use (state/weights/stored_model.h).
/// Throws Error(kCheckpoint), before anything is read, with a list of every parameter of the model that is
/// missing or has another shape or kind of type, and of every tensor that is unused and not allowed by
/// options.init_unused.
std::unique_ptr<shard::ParameterSource> stored_weights(const nn::ModelOptions& options,
                                                       checkpoint::Weights weights);

/// Returns the values of rank 0's `source`, which may be null on other ranks. Rank 0 reads whole parameters
/// and broadcasts them, which is faster on file systems that slow down with many readers. Each rank holds one
/// whole parameter at a time. Collective; an error of `source` is thrown on every rank as comm::AgreedError.
std::unique_ptr<shard::ParameterSource> broadcast_weights(std::unique_ptr<shard::ParameterSource> source,
                                                          std::shared_ptr<comm::Communicator> communicator);

/// Adds the values of the model's adapters (model/nn/lora.h) to `base`: those of options.init_from, or PEFT's
/// first values, which depend on seed and name. DoRA's magnitudes are norms of rows of the weights in `base`.
/// Quantizes the weights of quantized layers (quantize_frozen()). Collective if `base` is. Throws
/// Error(kCheckpoint) for stored adapters that do not fit.
std::unique_ptr<shard::ParameterSource> with_adapters(std::unique_ptr<shard::ParameterSource> base,
                                                      const torch::nn::Module& model,
                                                      const nn::LoraOptions& options, uint64_t seed);

/// A listener to the progress of reading weights, and the words for the work.
struct WeightsProgress {
  util::ByteProgress report;  ///< may be empty
  std::string words;
};

/// Returns the values of `source`, and reports how many bytes of all parameters of `model` were read.
std::unique_ptr<shard::ParameterSource> counted_weights(std::unique_ptr<shard::ParameterSource> source,
                                                        const torch::nn::Module& model,
                                                        WeightsProgress progress);

/// Returns random weights or those of options.init_from, by broadcast or not, as the options say. `model`:
/// the module of the options, which may be on meta; a plug-in's model must use every stored tensor.
/// Collective, with the same options on all ranks. Throws comm::AgreedError(kCheckpoint) for weights that do
/// not fit the model, that cannot be opened, or whose description names another model.
std::unique_ptr<shard::ParameterSource> initial_weights(const nn::ModelOptions& options, uint64_t seed,
                                                        std::shared_ptr<comm::Communicator> communicator,
                                                        const torch::nn::Module& model);

}  // namespace fsdp::train
