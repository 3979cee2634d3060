#pragma once

// How the layers of a run compute, apart from the options of the model: in 8 bits (training.float8), and as
// graphs of the GPU (training.cuda_graphs, model/nn/stage_graphs.h).

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "model/nn/layers.h"
#include "model/nn/stage.h"
#include "model/nn/stage_graphs.h"
#include "setup/config/config.h"
#include "shard/engine/engine.h"

namespace fsdp::train {

/// Makes the layers that the config chooses multiply in 8 bits on `device` and returns them; none without
/// training.float8. Throws Error(kUsage) for a GPU without such products, for a model without such layers and
/// for patterns of training.float8_exclude that match none.
nn::Float8Layers apply_float8(const config::Config& config, nn::Stage& model, const c10::Device& device);

/// The result in a line, with numbers of layers.
std::string describe(const nn::Float8Layers& layers, const c10::Device& device);

/// With training.cuda_graphs: whatever this thread launches from now on goes to a stream that can be
/// recorded. Throws Error(kUsage) where `device` is no GPU.
void prepare_graphs(const config::Config& config, const c10::Device& device);

/// Makes graphs of the blocks of a sharded model. Throws Error(kUsage) where a unit lies inside a block,
/// since nothing can be gathered in the middle of a graph.
std::shared_ptr<const nn::GraphCounts> graph_blocks(nn::Stage& model, const shard::Engine& engine,
                                                    util::MakeGraphPool make_pool);

/// "CUDA graphs: 72 recorded, 4,776 launched, 0 passes through blocks kernel by kernel".
std::string describe(const nn::GraphCounts& counts);

}  // namespace fsdp::train
