#pragma once

// training.cuda_graphs: the blocks of a sharded model as graphs of its GPU (nn/stage_graphs.h).

#include <memory>

#include "config/config.h"
#include "nn/stage_graphs.h"
#include "shard/engine.h"

namespace fsdp::train {

/// Where the config asks for graphs: puts what this thread launches from now on, on a stream that can be
/// recorded. Throws Error(kUsage) where `device` is no GPU.
void prepare_graphs(const config::Config& config, const c10::Device& device);

/// After sharding. Throws Error(kUsage) where a unit lies inside a block, since nothing can be gathered in
/// the middle of a graph.
std::shared_ptr<const nn::GraphCounts> graph_blocks(nn::Stage& model, const shard::Engine& engine,
                                                    util::MakeGraphPool make_pool);

/// "CUDA graphs: 72 recorded, 4,776 launched, 0 stages run kernel by kernel".
std::string describe(const nn::GraphCounts& counts);

}  // namespace fsdp::train
