#pragma once

/// \file
/// fully_shard(): shards a model in place (ZeRO-3; PyTorch's function of that name). Its parameters,
/// gradients and optimizer state are sharded over the ranks. Each FSDP unit is all-gathered for its forward
/// and its backward and resharded after them; its gradients are reduce-scattered when its backward ends.
/// ShardOptions determines which modules become units, how they are sharded, and when they are prefetched.
///
/// Collective: fully_shard(), forward and backward of the module, and the functions of Engine documented so.
/// All ranks must call them in the same order; a mismatch is detected and reported.
///
/// Errors: Error(kUsage) for options that contradict each other or name modules that the model does not have,
/// for a root module that cannot be hooked, and for ranks that call different collectives.
///
/// Lifetime: module and engine share their state; either may outlive the other. Parameters are unsharded only
/// while their unit is in use, and reading one at another time is an error: see fsdp/full_parameters.h and
/// fsdp/state_dict.h. The gradients of the module's parameters cannot be read either: see fsdp/optimizer.h.
///
/// \code{.cpp}
/// void train(fsdp::Stage& model, const at::Tensor& inputs, const at::Tensor& targets,
///            const std::shared_ptr<fsdp::Communicator>& communicator) {
///   auto engine = fsdp::fully_shard(model, {.min_num_params = 100'000}, communicator);
///   fsdp::OptimizerOptions options{.name = "adamw", .lr = 3e-4};
///   auto optimizer = fsdp::make_optimizer(options, fsdp::flat_parameters(*engine, options));
///   for (int step = 0; step < 100; ++step) {
///     engine->zero_gradients();
///     at::Tensor loss = at::mse_loss(model.forward(inputs), targets);    // this rank's part of the batch
///     loss.backward();
///     fsdp::clip_grad_norm(*engine, /*max_norm=*/1.0);
///     optimizer->step(fsdp::shard_gradients(*engine), options.lr);
///   }
/// }
/// /// Makes each block a unit, and the remaining parameters one more.
/// std::shared_ptr<fsdp::Engine> one_by_one(fsdp::StageList& blocks, fsdp::Stage& model,
///                                          const std::shared_ptr<fsdp::Communicator>& communicator) {
///   for (const auto& block : blocks) fsdp::fully_shard(*block, {}, communicator);
///   return fsdp::fully_shard(model, {}, communicator);
/// }
/// \endcode

#include "shard/engine/fully_shard.h"
#include "shard/units/options.h"

namespace fsdp {

using shard::BackwardPrefetch;
using shard::BufferType;
using shard::Engine;
using shard::ForwardPrefetch;
using shard::fully_shard;
using shard::HybridOptimizer;
using shard::Layout;
using shard::Materialize;
using shard::MixedPrecisionOptions;
using shard::ShardDimension;
using shard::ShardOptions;
using shard::StageInfo;
using shard::Strategy;
using shard::Unit;
using shard::WrapPolicy;

}  // namespace fsdp
