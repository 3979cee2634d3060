#pragma once

/// \file
/// The global norm of the gradient, over all units and ranks, and clipping by it
/// (torch.nn.utils.clip_grad_norm_) or element by element (torch.nn.utils.clip_grad_value_). Replicated
/// gradients count once.
///
/// Collective: all functions except clip_grad_value(); each is one all-reduce of a double.
///
/// Errors: Error(kUsage) while gradients are not reduced yet (after a micro-batch without sync, during
/// backward).
///
/// Lifetime: no state is kept.
///
/// \code{.cpp}
/// bool clip_or_skip(fsdp::Engine& engine) {
///   const double norm = fsdp::clip_grad_norm(engine, /*max_norm=*/1.0);  // before clipping
///   if (std::isfinite(norm)) return true;
///   std::cerr << "not finite: " << fsdp::first_unit_that_is_not_finite(engine) << "\n";
///   return false;
/// }
/// \endcode

#include "shard/state/grad_norm.h"

namespace fsdp {

using shard::clip_grad_norm;
using shard::clip_grad_value;
using shard::first_unit_that_is_not_finite;
using shard::grad_norm;
using shard::unit_with_largest_gradient;

}  // namespace fsdp
