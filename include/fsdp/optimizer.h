#pragma once

/// \file
/// Optimizers over this rank's shards (optimizer_names()), with parameter groups by name (see
/// OptimizerOptions). They update fp32 master weights in place, or weights in 16 bits
/// (ShardOptions::param_storage), which they round stochastically.
///
/// Collective: only Optimizer::step() with muon, which gathers matrices, and with lamb and adafactor, which
/// add up sums over tensors. These three need a ShardedMatrices.
///
/// Errors: Error(kUsage) for an unknown name, for numbers out of range, and for a step that was begun but not
/// ended.
///
/// Lifetime: the optimizer holds the shards' tensors, not the engine; ShardedMatrices must not outlive the
/// engine.
///
/// \code{.cpp}
/// std::unique_ptr<fsdp::Optimizer> muon_of(fsdp::Engine& engine,
///                                          std::optional<fsdp::ShardedMatrices>& matrices) {
///   fsdp::OptimizerOptions options{.name = "muon", .lr = 0.02};
///   matrices.emplace(engine, options);                                   // must outlive the optimizer
///   return fsdp::make_optimizer(options, fsdp::flat_parameters(engine, options), &*matrices);
/// }
/// void update(fsdp::Engine& engine, fsdp::Optimizer& optimizer, double lr) {
///   optimizer.step(fsdp::shard_gradients(engine), lr);
/// }
/// \endcode

#include "optim/engine_shards.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace fsdp {

using optim::flat_parameters;
using optim::FlatParameter;
using optim::make_optimizer;
using optim::Optimizer;
using optim::optimizer_names;
using optim::OptimizerOptions;
using optim::ParameterGroupOptions;
using optim::shard_gradients;
using optim::ShardedMatrices;

}  // namespace fsdp
