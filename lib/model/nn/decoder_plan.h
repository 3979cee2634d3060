#pragma once

#include "model/families/options.h"
#include "model/nn/parallel_plan.h"

namespace fsdp::nn {

/// The plan of the built-in architectures.
ParallelPlan decoder_plan(const ModelOptions& options, const ParallelOptions& parallel);

}  // namespace fsdp::nn
