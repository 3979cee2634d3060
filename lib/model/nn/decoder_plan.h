#pragma once

#include "model/families/options.h"
#include "model/nn/parallel_plan.h"

namespace fsdp::nn {

/// Tensor-parallel plan of a built-in architecture. Throws Error(kUsage) if ranks cannot share its layers.
ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel);

}  // namespace fsdp::nn
