#pragma once

/// \file
/// Optimizers over this rank's shards (optimizer_names()), with parameter groups by name (see
/// OptimizerOptions). They update fp32 master weights in place, or weights in 16 bits
/// (ShardOptions::param_storage), which they round stochastically. full_optimizer_state() gathers the whole
/// state, and load_full_optimizer_state() or scatter_full_optimizer_state() restore it, on any number of
/// ranks. parameters() and named_parameters() return this rank's parts of the parameters for an optimizer of
/// torch::optim.
///
/// Collective: Optimizer::step() with muon, which gathers matrices, and with lamb and adafactor, which add up
/// sums over tensors (these three need a ShardedMatrices); full_optimizer_state() and
/// scatter_full_optimizer_state(). No other function is.
///
/// Errors: Error(kUsage) for an unknown name, for numbers out of range, and for a step that was begun but not
/// ended; Error(kCheckpoint) that names missing, unexpected and misshapen states, before any is written.
///
/// Lifetime: the optimizer holds the shards' tensors, not the engine; ShardedMatrices must not outlive the
/// engine. parameters() are valid as long as the engine has its units.
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
/// /// Moves the state to other options or another model of the same parameters, on the same ranks.
/// void move_state(fsdp::Engine& from, const fsdp::Optimizer& old, fsdp::Engine& to, fsdp::Optimizer& next) {
///   const fsdp::FullOptimizerState state = fsdp::full_optimizer_state(from, old, {.rank0_only = true});
///   fsdp::scatter_full_optimizer_state(to, next, state);               // read on rank 0 only
/// }
/// \endcode

#include "state/groups/options.h"
#include "state/optim/engine_shards.h"
#include "state/optim/optimizer.h"
#include "state/optim/optimizer_state.h"

namespace fsdp {

using optim::flat_parameters;
using optim::FlatParameter;
using optim::full_optimizer_state;
using optim::FullOptimizerState;
using optim::load_full_optimizer_state;
using optim::load_sharded_optimizer_state;
using optim::make_optimizer;
using optim::named_parameters;
using optim::Optimizer;
using optim::optimizer_names;
using optim::OptimizerOptions;
using optim::ParameterGroupOptions;
using optim::parameters;
using optim::ParameterState;
using optim::scatter_full_optimizer_state;
using optim::shard_gradients;
using optim::sharded_optimizer_state;
using optim::ShardedMatrices;
using optim::ShardedOptimizerState;

}  // namespace fsdp
