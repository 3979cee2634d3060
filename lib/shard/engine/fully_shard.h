#pragma once

// fully_shard(): shards a model in place over a mesh of ranks (ZeRO-3; PyTorch's function of that name).
//
//   auto engine = fsdp::shard::fully_shard(*model, {.min_num_params = 100'000}, communicator);
//   loss = f(model->forward(x));
//   loss.backward();

#include <memory>

#include "shard/engine/engine.h"

namespace fsdp::shard {

/// Throws Error(kUsage) for a mesh with an axis model without ShardOptions::parts.
void require_parts(const comm::Mesh& mesh, const ShardOptions& options);

/// Shards `root` in place over the mesh and attaches hooks to its stages, which keep the engine alive.
/// Parameters keep their names. Modules that wrap() has noted in a scope of EnableWrap (shard/engine/wrap.h)
/// are units with options of their own. Requires: equal weights on all ranks, and a model that is run by the
/// root stage's forward. Throws Error(kUsage) for options that contradict each other or name something that
/// the model lacks, for a module that is sharded already, and for a mesh with an axis model without
/// ShardOptions::parts.
///
/// Parameters may be on the meta device if `materialize` has a source, which then fills the shards of one
/// unit after another, so a rank never holds more of the model than its shards. Buffers must be real. An
/// exception from the source leaves the model unusable.
///
/// Modules can be sharded one by one, inner ones first, and the rest with the outermost (PyTorch's idiom):
///
///   for (auto& block : blocks) fully_shard(*block, options, mesh);
///   auto engine = fully_shard(*model, options, mesh);
///
/// Each inner module is a unit of the last engine, and so are the units that its own call chose inside it.
/// Its own engine ends. Its units keep the options of its call, and no policy of the outer call is consulted
/// for modules inside it. Options that only a whole engine has (layout, prefetch, the type of buffers) must
/// be those of the outer call, or the default. Meanwhile the weights of one unit at a time are whole in
/// memory. Collective if there are inner modules.
std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& options,
                                    const comm::Mesh& mesh, std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

/// Shards over all ranks of a communicator: a mesh of dcn 1 x data (all) x model 1.
std::shared_ptr<Engine> fully_shard(torch::nn::Module& root, const ShardOptions& options,
                                    std::shared_ptr<comm::Communicator> communicator,
                                    std::shared_ptr<comm::Trace> trace = nullptr,
                                    const Materialize& materialize = {});

}  // namespace fsdp::shard
