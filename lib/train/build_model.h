#pragma once

#include <memory>

#include "nn/options.h"
#include "nn/stage.h"

namespace fsdp::train {

/// The whole model of the options with its first weights, in the memory of this process; a sharded run builds
/// it part by part (train/run_parts.h) and starts with the same values. Weights are random from (seed, name),
/// or read from options.init_from, where every parameter must be found with its shape. Throws Error(kUsage)
/// for impossible shapes and Error(kCheckpoint) for weights that do not fit.
std::shared_ptr<nn::Stage> build_model(const nn::ModelOptions& options, uint64_t seed);

}  // namespace fsdp::train
