#pragma once

/// \file
/// fully_shard(): shards a model in place (ZeRO-3; PyTorch's function of that name). Its parameters,
/// gradients and optimizer state are cut over the ranks; each FSDP unit is gathered for its forward and its
/// backward and freed behind it, and its gradients are reduced when its backward ends. ShardOptions says
/// which modules become units, how they are cut, and in which order they are gathered.
///
/// Collective: fully_shard(), forward and backward of the module, and what Engine marks so. Every rank calls
/// them in the same order; a difference is found and named.
///
/// Errors: Error(kUsage) for options that contradict each other or name what the model has not, for a root
/// that no hook can see, and for ranks that do different things.
///
/// Lifetime: module and engine share their state; each may outlive the other. Parameters are whole only while
/// their unit is in use: read them by fsdp/state_dict.h.
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
/// \endcode

#include "shard/fully_shard.h"
#include "shard/options.h"

namespace fsdp {

using shard::BackwardPrefetch;
using shard::Engine;
using shard::ForwardPrefetch;
using shard::fully_shard;
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
