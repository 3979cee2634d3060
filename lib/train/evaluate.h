#pragma once

#include <filesystem>
#include <memory>

#include "comm/communicator.h"
#include "config/config.h"
#include "train/evaluator.h"

namespace fsdp::train {

/// Validates the weights of a checkpoint, a run's newest checkpoint, a safetensors file or a Hugging Face
/// folder on data.validation, sharded as the config says. Makes no optimizer and writes no file. Collective.
/// Throws Error(kUsage) when the config names no validation data, and what opening data and weights throws.
Validation evaluate(const config::Config& config, std::shared_ptr<comm::Communicator> communicator,
                    const std::filesystem::path& weights);

}  // namespace fsdp::train
