#pragma once

#include "shard/engine.h"

namespace fsdp::shard {

/// p-norm of the whole gradient over all ranks (p > 0; infinity: the largest magnitude), as if it lay in one
/// vector. One all-reduce of a double. Collective.
double grad_norm(Engine& engine, double norm_type = 2.0);

/// Scales the gradients by max_norm / norm when the norm is larger, as torch.nn.utils.clip_grad_norm_ does
/// (with 1e-6 added to the norm), and returns the norm before. max_norm 0: only measures. A norm that is not
/// finite leaves the gradients as they are; the caller decides. Collective.
double clip_grad_norm(Engine& engine, double max_norm, double norm_type = 2.0);

}  // namespace fsdp::shard
