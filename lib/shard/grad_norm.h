#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shard/engine.h"

namespace fsdp::shard {

/// Norms of this rank's parts of units' gradients that are known already; nothing where one is not.
using KnownNorms = std::vector<std::optional<double>>;

/// That of unit i, which has a gradient. Not collective.
double local_grad_norm(const Engine& engine, size_t i, double norm_type = 2.0);

/// p-norm of the whole gradient over all ranks (p > 0; infinity: the largest magnitude), as if it lay in one
/// vector: what every rank holds whole counts once. One all-reduce of a double. Throws Error(kUsage) when
/// gradients wait to be reduced. `known`: empty, or what local_grad_norm() said of some units. Collective.
double grad_norm(Engine& engine, double norm_type = 2.0, const KnownNorms& known = {});

/// What clip_grad_norm() would do, for a caller whose optimizer multiplies gradients as it reads them.
struct Clipping {
  double norm = 0;   ///< of the gradients / loss_scale, before clipping
  double scale = 1;  ///< what the gradients are to be multiplied with; 1 where the norm is not finite
};
Clipping clipping(Engine& engine, double max_norm, double norm_type = 2.0, double loss_scale = 1.0,
                  const KnownNorms& known = {});

/// Divides the gradients by loss_scale, scales them by max_norm / norm when the norm is larger, as
/// torch.nn.utils.clip_grad_norm_ does (with 1e-6 added to the norm), in one pass, and returns the norm
/// before clipping. max_norm 0: no clipping. A norm that is not finite leaves the gradients as they are; the
/// caller decides. Collective.
double clip_grad_norm(Engine& engine, double max_norm, double norm_type = 2.0, double loss_scale = 1.0);

/// The unit with the largest 2-norm of its gradient; empty when none has one. Collective.
std::string unit_with_largest_gradient(Engine& engine);

/// The unit nearest the loss whose gradient has an infinity or NaN on any rank, where a backward pass met it
/// first; empty when all are finite. Collective.
std::string first_unit_that_is_not_finite(Engine& engine);

}  // namespace fsdp::shard
