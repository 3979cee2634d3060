#pragma once

// Modes in which the layers of a run compute, apart from the options of the model: in 8 bits
// (training.float8), and as graphs of the GPU (training.cuda_graphs, model/nn/stage_graphs.h).

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "model/nn/layers.h"
#include "model/nn/stage.h"
#include "model/nn/stage_graphs.h"
#include "setup/config/config.h"

namespace fsdp::shard {
class Engine;
}

namespace fsdp::train {

/// Makes the layers that the config chooses multiply in 8 bits on `device` and returns them; none without
/// training.float8. Throws Error(kUsage) for a GPU without such products, for a model without such layers and
/// for patterns of training.float8_exclude that match none.
nn::Float8Layers apply_float8(const config::Config& config, nn::Stage& model, const c10::Device& device);

/// Describes the layers in a line, with their numbers.
std::string describe(const nn::Float8Layers& layers, const c10::Device& device);

/// Makes this thread launch on a stream that can be recorded, for training.cuda_graphs. Throws Error(kUsage)
/// if `device` is no GPU.
void prepare_graphs(const config::Config& config, const c10::Device& device);

/// Makes graphs of the blocks of a sharded model. Throws Error(kUsage) if a unit is inside a block,
/// because nothing can be gathered in the middle of a graph.
std::shared_ptr<const nn::GraphCounts> graph_blocks(nn::Stage& model, const shard::Engine& engine,
                                                    util::MakeGraphPool make_pool);

/// Returns "CUDA graphs: 72 recorded, 4,776 launched, 0 passes through blocks kernel by kernel".
std::string describe(const nn::GraphCounts& counts);

}  // namespace fsdp::train
