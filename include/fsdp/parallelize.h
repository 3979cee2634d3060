#pragma once

/// \file
/// parallelize(): tensor and sequence parallelism by a plan in the terms of torch's parallelize_module, for
/// the built-in decoders (parallelize_decoder()) and for modules made of the layers of model/nn/layers.h or
/// of libtorch's Linear and Embedding, declared as Hooked. The ranks of the mesh's axis model compute each
/// layer together, and fully_shard() shards their parts over the other axes.
///
/// Collective: every later forward and backward, over the given group: Mesh::model(), which has a queue of
/// its own for this. parallelize() itself is not.
///
/// Errors: Error(kUsage), before anything has changed, for a plan that does not fit: unknown modules, heads,
/// features or a vocabulary that the number of ranks does not divide, layouts that the next layer cannot
/// take; in forward, for a sequence that the number of ranks does not divide.
///
/// Lifetime: the layers keep the group alive. Parallelize first, then attach hooks, shard, make optimizers.
///
/// \code{.cpp}
/// /// ids, targets: [B, T] int64, the same on all ranks of a model group.
/// /// Requires: options.num_attention_heads is a multiple of 2.
/// at::Tensor loss_of_two_dimensions(const fsdp::ModelOptions& options,
///                                   std::shared_ptr<fsdp::Communicator> world,
///                                   const at::Tensor& ids, const at::Tensor& targets) {
///   const fsdp::Mesh mesh({.data = -1, .model = 2}, std::move(world));
///   auto model = fsdp::make_decoder(options);
///   fsdp::initialize_parameters(*model, options, /*seed=*/1);  // the whole model, the same on all ranks
///   fsdp::ShardOptions shard;
///   shard.parts =
///       fsdp::parallelize_decoder(*model, options, {.sequence_parallel = true}, mesh.model());
///   auto engine = fsdp::fully_shard(*model, shard, mesh);
///   at::Tensor loss = fsdp::loss_of(*model, ids, targets);
///   loss.backward();
///   fsdp::clip_grad_norm(*engine, 1.0);                                  // each element counts once
///   return loss.detach();
/// }
/// \endcode

#include "model/families/parameter_part.h"
#include "model/nn/decoder.h"
#include "model/nn/parallel_plan.h"
#include "model/nn/parallelize.h"

namespace fsdp {

using nn::ColwiseParallel;
using nn::parallelize;
using nn::parallelize_decoder;
using nn::ParallelOptions;
using nn::ParallelPlan;
using nn::ParameterPart;
using nn::PrepareModuleInput;
using nn::PrepareModuleOutput;
using nn::RowwiseParallel;
using nn::SequenceParallel;

}  // namespace fsdp
