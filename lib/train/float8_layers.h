#pragma once

// training.float8 of a run.

#include <c10/core/Device.h>

#include <string>

#include "config/config.h"
#include "nn/layers.h"
#include "nn/stage.h"

namespace fsdp::train {

/// Lets the layers that the config means multiply in 8 bits on `device`, and says which they are; none unless
/// training.float8 is set. Throws Error(kUsage) for a GPU that cannot, for a model without such a layer and
/// for patterns of training.float8_exclude that match none.
nn::Float8Layers apply_float8(const config::Config& config, nn::Stage& model, const c10::Device& device);

/// What came of it, with the number of layers, in a line.
std::string describe(const nn::Float8Layers& layers, const c10::Device& device);

}  // namespace fsdp::train
