#pragma once

// fully_shard(): shards a model in place over a mesh of ranks (ZeRO-3; PyTorch's function of that name).
//
//   auto engine = fsdp::shard::fully_shard(*model, {.min_num_params = 100'000}, communicator);
//   loss = f(model->forward(x));
//   loss.backward();

#include <memory>

#include "shard/engine.h"

namespace fsdp::shard {

/// Shards `root` in place over the mesh, attaching to its stages; parameters keep their names. The weights
/// must be equal on all ranks. The root stage's forward must be what runs the model. The returned engine also
/// lives as long as the stages do. Throws Error(kUsage) for options that contradict each other or name what
/// the model has not.
///
/// Parameters may lie on the meta device if `materialize` has a source: then each unit's parameters get their
/// values, shard by shard, when the unit is made, and a rank never holds more of the model than its shards.
/// Buffers must be real. What the source throws leaves the model unusable.
std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& options,
                                    const comm::Mesh& mesh, std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

/// The same over the ranks of a communicator in a row: a mesh of dcn 1 x data all x model 1.
std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

}  // namespace fsdp::shard
