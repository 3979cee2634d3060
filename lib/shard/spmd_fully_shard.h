#pragma once

// FSDP via SPMD (PyTorch/XLA's "FSDPv2"): sharding declared on a mesh, one parameter at a time, on the same
// engine as fully_shard(). Parameters are cut on the mesh axis data, each on one dimension, and replicated
// over dcn; activations are cut on their batch dimension over dcn x data.
//
//   comm::Mesh mesh({.dcn = 2, .data = 4}, communicator);
//   SpmdOptions options;
//   options.auto_wrap_policy = stage_type_policy({"block"});
//   auto engine = spmd_fully_shard(*model, mesh, {}, options);
//   at::Tensor logits = model->forward(batch);      // the whole batch in, this rank's rows out
//
// or SpmdFullyShardedDataParallel (shard/spmd_module.h), which any module fits into.
//
// What goes into the outermost sharded module: an activation with a mark (mark_sharding(),
// mark_local_shard()) is this rank's part; one without is the whole batch, which every rank has, and is cut.
// What comes out is marked as sharded on its batch dimension. Inside, everything is the rank's part.
//
// The backward barrier: the gradients of a unit are communicated when its own backward has ended, in
// collectives of their own; they are never joined with those of another unit. The loss is the mean of the
// ranks' losses, as everywhere with the engine.

#include <functional>
#include <memory>

#include "comm/mesh.h"
#include "nn/stage.h"
#include "shard/engine.h"
#include "shard/sharding_marks.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

/// Marks what comes out of the module, in place of the rule that a tensor is sharded on its batch dimension.
using ShardOutput = std::function<void(const at::Tensor& output, const comm::Mesh& mesh)>;

/// Of spmd_fully_shard().
struct SpmdOptions {
  SpmdOptions() {
    shard.layout = Layout::kPerParameter;
    shard.strategy = Strategy::kHybridShard;
  }

  /// Which stages inside become units of their own; none: the module is one unit, with those inside it that
  /// were sharded before.
  WrapPolicy auto_wrap_policy;
  /// Everything else. The strategy full_shard cuts over dcn x data. How the units are chosen is the business
  /// of auto_wrap_policy, which dimensions are cut is that of the marks, and of shard_dimension and
  /// shard_1d_parameters for parameters without one.
  ShardOptions shard;
};

/// Shards the module's parameters in place and attaches to it; names stay as they are. A stage inside that
/// was sharded before by this function becomes a unit, and the engine that it had ends: so layers can be
/// sharded one by one, and what is left of the parameters with the outermost module. The weights of the
/// layers are whole in memory while that happens; auto_wrap_policy needs no such memory.
///
/// Collective. Throws Error(kUsage) for a module that is sharded already, for options and marks that
/// contradict each other, and for a mark that cuts a parameter on more than one dimension or on other axes
/// than the strategy shards over.
std::shared_ptr<Engine> spmd_fully_shard(nn::Stage& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output = {}, SpmdOptions options = {},
                                         std::shared_ptr<comm::Trace> trace = nullptr);

}  // namespace fsdp::shard
