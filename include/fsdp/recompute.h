#pragma once

/// \file
/// Activation checkpointing: a stage saves only its input and runs again in backward (Chen et al.: Training
/// deep nets with sublinear memory cost, 2016). Losses and gradients are bit for bit the same. With
/// offload_activations(), the inputs wait in pinned memory of the host.
///
/// Collective: nothing by itself.
///
/// Errors: Error(kUsage) for a type that no stage has, for the type of the root, and for second derivatives.
///
/// Lifetime: the stages own the hooks. Attach them after fully_shard(), so that they are inside the hooks of
/// the units; otherwise the next unit's all-gather does not overlap with the recomputation.
///
/// \code{.cpp}
/// std::shared_ptr<fsdp::Engine> shard_and_recompute(
///     fsdp::Stage& model, const std::shared_ptr<fsdp::Communicator>& communicator) {
///   auto engine = fsdp::fully_shard(model, {}, communicator);
///   fsdp::checkpoint_activations(model, {"block"});
///   return engine;
/// }
/// \endcode

#include "model/nn/recompute.h"

namespace fsdp {

using nn::checkpoint_activations;
using nn::HostActivations;
using nn::make_host_activations;
using nn::Offload;
using nn::offload_activations;
using nn::OffloadOptions;
using nn::Recompute;

}  // namespace fsdp
