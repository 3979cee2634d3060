#pragma once

// The memory of the head's logits on a GPU. Logits are computed in chunks of rows (model/kernels/fused.h). A
// chunk that has all rows of a micro-batch is kept for the gradient of the head's weight, which is then one
// product that adds to the fp32 gradients; otherwise it is summed chunk by chunk and rounded before it is
// added.

#include <cstdint>

#include "comm/options/mesh_shape.h"
#include "setup/config/config.h"
#include "tools/plan/recorded_pass.h"

namespace fsdp::plan {

/// Share of a GPU's memory that a step whose logits are one chunk may need. The rest is for what a plan does
/// not count: the libraries and fragments.
inline constexpr double kMemoryShareOfOneChunk = 0.75;

/// Returns the value of model.logits_mib for training.logits_mib = 0: the MiB of all logits of a micro-batch
/// if the step then fits into that share of `device_bytes`, otherwise the given value. Parts of a vocabulary
/// (mesh.model) keep theirs, because their collectives are counted by it. config.mesh must have the sizes of
/// context and model.
int64_t choose_logits_mib(const config::Config& config, const comm::MeshShape& mesh, int64_t device_bytes,
                          PassDevice device = PassDevice::kOfConfig);

}  // namespace fsdp::plan
