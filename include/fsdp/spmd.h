#pragma once

/// \file
/// FSDP via SPMD (PyTorch/XLA's FSDPv2) on the same engine: parameters are sharded one by one over a mesh
/// axis, the batch over dcn x data. The input is the whole batch, the output this rank's rows.
/// spmd_fully_shard() shards a Stage, SpmdFullyShardedDataParallel any module.
///
/// Collective: spmd_fully_shard(), the constructor of SpmdFullyShardedDataParallel, forward and backward,
/// full_tensor().
///
/// Errors: Error(kUsage) for a module that is already sharded, and for sharding marks and options that
/// contradict each other.
///
/// Lifetime: as in fsdp/fully_shard.h; a sharding mark lives as long as its tensor.
///
/// \code{.cpp}
/// at::Tensor rows_of_this_rank(fsdp::Stage& model, const fsdp::Mesh& mesh, const at::Tensor& whole_batch) {
///   fsdp::SpmdOptions options;
///   options.auto_wrap_policy = fsdp::stage_type_policy({"block"});
///   auto engine = fsdp::spmd_fully_shard(model, mesh, {}, options);
///   return model.forward(whole_batch);                  // [B, ...] in, [B / (dcn * data), ...] out
/// }
/// \endcode

#include "shard/spmd_fully_shard.h"
#include "shard/spmd_module.h"

namespace fsdp {

using shard::batch_spec;
using shard::full_tensor;
using shard::mark_local_shard;
using shard::mark_sharding;
using shard::PartitionSpec;
using shard::Sharding;
using shard::sharding_of;
using shard::ShardOutput;
using shard::spmd_fully_shard;
using shard::SpmdFullyShardedDataParallel;
using shard::SpmdOptions;
using shard::stage_type_policy;

}  // namespace fsdp
