#pragma once

// FSDP via SPMD (PyTorch/XLA's "FSDPv2"): sharding declared on a mesh, per parameter, on the engine of
// fully_shard(). Parameters are cut on one dimension each over the mesh axis data and replicated over dcn;
// activations are cut on their batch dimension over dcn x data.
//
//   comm::Mesh mesh({.dcn = 2, .data = 4}, communicator);
//   SpmdOptions options;
//   options.auto_wrap_policy = stage_type_policy({"block"});
//   auto engine = spmd_fully_shard(*model, mesh, {}, options);
//   at::Tensor logits = model->forward(batch);      // the whole batch in, this rank's rows out
//
// or SpmdFullyShardedDataParallel (shard/spmd_module.h), which wraps any module.
//
// Input of the outermost sharded module: an activation with a mark (mark_sharding(), mark_local_shard()) is
// this rank's part; one without is the whole batch, present on every rank, and is cut. The output is marked
// as sharded on its batch dimension. Inside the module, every activation is this rank's part.
//
// The backward barrier: the gradients of a unit are communicated when its own backward has ended, in separate
// collectives, never joined with those of another unit. As everywhere with the engine, the loss is the mean
// of the ranks' losses.

#include <functional>
#include <memory>

#include "comm/mesh.h"
#include "nn/stage.h"
#include "shard/engine.h"
#include "shard/sharding_marks.h"
#include "shard/wrap_policy.h"

namespace fsdp::shard {

/// Marks the module's output, which otherwise is marked as sharded on its batch dimension.
using ShardOutput = std::function<void(const at::Tensor& output, const comm::Mesh& mesh)>;

/// How spmd_fully_shard() shards a module; by default hybrid, each parameter on a dimension of its own.
struct SpmdOptions {
  SpmdOptions() {
    shard.layout = Layout::kPerParameter;
    shard.strategy = Strategy::kHybridShard;
  }

  /// Which inner stages become units. Empty: the module is one unit, and so is each inner stage sharded
  /// before.
  WrapPolicy auto_wrap_policy;
  /// All other options. The strategy full_shard cuts over dcn x data. wrap_policy is ignored; shard_dimension
  /// and shard_1d_parameters apply to parameters without a mark.
  ShardOptions shard;
};

/// Shards the module's parameters in place and attaches hooks to it; names are unchanged. An inner stage that
/// this function sharded before becomes a unit, and its engine ends: layers can be sharded one by one, and
/// the remaining parameters with the outermost module. The layers' weights are whole in memory meanwhile,
/// unlike with auto_wrap_policy.
///
/// Collective. Throws Error(kUsage) for a module that is sharded already, for options and marks that
/// contradict each other, and for a mark that cuts a parameter on more than one dimension or over other axes
/// than the strategy's.
std::shared_ptr<Engine> spmd_fully_shard(nn::Stage& module, const comm::Mesh& mesh,
                                         ShardOutput shard_output = {}, SpmdOptions options = {},
                                         std::shared_ptr<comm::Trace> trace = nullptr);

}  // namespace fsdp::shard
