#pragma once

/// \file
/// FullParameters: a module's whole parameters, for reading or changing them outside of forward and backward
/// (PyTorch's FSDP.summon_full_params). Otherwise a rank has only its shard, and reading a parameter is an
/// error that names this class. For copies of the parameters see fsdp/state_dict.h.
///
/// Collective: the constructor, with the same options on all ranks. The destructor is not.
///
/// Errors: Error(kUsage) while the engine is in use, for options that exclude each other, and for a pattern
/// that matches no unit; on closing, for data that replaced a parameter's and does not fit.
///
/// Lifetime: the engine must outlive it. No forward or backward may run while it is open.
///
/// \code{.cpp}
/// void halve(fsdp::Engine& engine, torch::nn::Linear& layer) {
///   fsdp::FullParameters full(engine, {.writeback = true});
///   at::NoGradGuard no_grad;
///   layer->weight.mul_(0.5);
/// }  // the shards have the new values
/// \endcode

#include "shard/state/full_parameters.h"

namespace fsdp {

using shard::FullParameters;
using shard::FullParametersOptions;

}  // namespace fsdp
