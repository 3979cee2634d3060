#pragma once

/// \file
/// wrap(): modules that are FSDP units with options of their own, marked where the model is built
/// (FairScale's and PyTorch's enable_wrap() and wrap()). In a scope of EnableWrap, wrap() records a module
/// and UnitOverrides: strategy (the ranks that share the unit), resharding, types, offload. The next
/// fully_shard() in the scope makes the module a unit with these options, whatever its policy. Options that a
/// call omits are those of the scope, otherwise those of the ShardOptions of fully_shard(). Outside of a
/// scope wrap() does nothing.
///
/// Collective: nothing. All ranks must wrap the same modules with the same options.
///
/// Errors: Error(kUsage) from wrap() for a module that cannot be hooked; from fully_shard() for a module that
/// is not in the model, or is wrapped twice, and for options that exclude each other, with the module's path.
///
/// Lifetime: a scope belongs to the thread that opens it, and keeps the modules alive until it ends or they
/// are sharded.
///
/// \code{.cpp}
/// struct MixtureImpl : torch::nn::Module {
///   at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
///   // x: [B, 64] -> the same. The first unit is in host memory, the second gathered once a step, in fp32.
///   using Linear = fsdp::Hooked<torch::nn::LinearImpl>;
///   Linear first = register_module("first", fsdp::wrap(Linear(64, 64), {.cpu_offload = true}));
///   Linear second = register_module(
///       "second", fsdp::wrap(Linear(64, 64), {.reshard_after_forward = false, .param_dtype = "float32"}));
/// };
/// std::shared_ptr<fsdp::Engine> shard_mixture(const std::shared_ptr<fsdp::Communicator>& communicator) {
///   const fsdp::EnableWrap scope({.reduce_dtype = "float32"});  // for all modules wrapped in the scope
///   fsdp::Hooked<MixtureImpl> model;
///   return fsdp::fully_shard(*model, {.mixed_precision = {.param_dtype = "bfloat16"}}, communicator);
/// }
/// \endcode

#include "shard/engine/wrap.h"
#include "shard/units/options.h"

namespace fsdp {

using shard::EnableWrap;
using shard::UnitOverrides;
using shard::wrap;
using shard::WrappedModule;

}  // namespace fsdp
