#pragma once

/// \file
/// FSDP via SPMD (PyTorch/XLA's FSDPv2) on the same engine: parameters are sharded one by one over a mesh
/// axis, the batch over dcn x data. The input is the whole batch, the output this rank's rows.
/// spmd_fully_shard() shards a Stage or Hooked module, SpmdFullyShardedDataParallel any module. Marks of
/// activations propagate through views, elementwise operations and matrix products. optimization_barrier() is
/// a fence for gradients, and spmd_debug() lists the shardings.
///
/// A mark with the axis model on the weight of a linear layer or an embedding makes the ranks of that axis
/// compute the layer together, as parallelize() does. Layers of libtorch must be Hooked for it.
///
/// Collective: spmd_fully_shard(), the constructor of SpmdFullyShardedDataParallel, forward and backward,
/// full_tensor().
///
/// Errors: Error(kUsage) for a module that is already sharded, for sharding marks and options that contradict
/// each other, for an activation whose mark is needed and not determined, and for layers that the ranks of
/// the axis model cannot compute together, or, in forward, whose input they cannot take.
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
/// std::shared_ptr<fsdp::Engine> layer_by_layer(fsdp::StageList& layers, fsdp::Stage& model,
///                                              const fsdp::Mesh& mesh) {
///   for (const auto& layer : layers) fsdp::spmd_fully_shard(*layer, mesh);
///   return fsdp::spmd_fully_shard(model, mesh);  // what is left, and the engine of all
/// }
/// /// The second dimension of `up` and the first of `down` are cut over data, the others over model.
/// void share(fsdp::Hooked<torch::nn::LinearImpl>& up, fsdp::Hooked<torch::nn::LinearImpl>& down,
///            const fsdp::Mesh& mesh) {
///   fsdp::mark_sharding(up->weight, mesh, {{fsdp::MeshAxis::kModel}, {fsdp::MeshAxis::kData}});
///   fsdp::mark_sharding(down->weight, mesh, {{fsdp::MeshAxis::kData}, {fsdp::MeshAxis::kModel}});
/// }
/// \endcode

#include "shard/spmd/optimization_barrier.h"
#include "shard/spmd/spmd_fully_shard.h"
#include "shard/spmd/spmd_module.h"

namespace fsdp {

using shard::batch_spec;
using shard::full_tensor;
using shard::mark_local_shard;
using shard::mark_sharding;
using shard::optimization_barrier;
using shard::PartitionSpec;
using shard::Sharding;
using shard::sharding_of;
using shard::ShardOutput;
using shard::spmd_debug;
using shard::spmd_fully_shard;
using shard::SpmdFullyShardedDataParallel;
using shard::SpmdOptions;
using shard::stage_type_policy;

}  // namespace fsdp
